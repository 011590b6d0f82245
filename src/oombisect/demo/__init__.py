"""The demo: a small repository in Bridge's layout, made on the spot, with regressions of memory in its history."""
