"""The database in Datasette, on this machine alone. Needs the extra `serve`; only `cli/serve.py` imports it."""
