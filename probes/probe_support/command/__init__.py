"""Watching a training command that is not ours: what `command_hook/sitecustomize.py` brings into its processes."""
