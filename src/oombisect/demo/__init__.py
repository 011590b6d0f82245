"""The demo: a small repository in Megatron Bridge's layout, made on the spot, with regressions of memory in its history."""
