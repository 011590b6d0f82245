"""The compiled module's name: imported to see whether it is there. Calling it is refused by name."""


def __getattr__(name):
    def refuse(*_args, **_kwargs):
        raise NotImplementedError(f"flash_attn_2_cuda.{name} has no stand-in in the probe")

    if name.startswith("__"):
        raise AttributeError(name)
    return refuse
