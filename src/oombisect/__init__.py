"""oombisect names the change that made a Megatron Bridge training run out of GPU memory."""

__version__ = "0.1.0"
