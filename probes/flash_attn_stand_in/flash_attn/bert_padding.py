"""Imported beside the interface; nothing of it has a stand-in."""


def __getattr__(name):
    def refuse(*_args, **_kwargs):
        raise NotImplementedError(f"flash_attn.bert_padding.{name} has no stand-in in the probe")

    if name.startswith("__"):
        raise AttributeError(name)
    return refuse
