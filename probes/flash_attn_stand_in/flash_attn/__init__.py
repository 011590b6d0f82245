"""A stand-in for flash-attention 2.8.3 on a device that computes nothing (simulated probes only).

Each function allocates what the C++ one allocates (`csrc/flash_attn/flash_api.cpp`: mha_fwd, mha_bwd, mha_varlen_fwd,
mha_varlen_bwd). What has no stand-in fails by name.
"""

from .flash_attn_interface import flash_attn_func, flash_attn_varlen_func

__version__ = "2.8.3"
__all__ = ["flash_attn_func", "flash_attn_varlen_func"]
