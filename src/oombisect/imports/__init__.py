"""What others measured, read: goldens of Megatron-LM's CI, snapshots, event files, logs, exports.

Each source has a pure parser: text or bytes in, `Content` out. `files` reads them, `run_import` records what they tell.
Nothing that is read is executed, and what cannot be read is counted and named.
"""
