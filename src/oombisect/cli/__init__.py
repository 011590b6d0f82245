"""The command line: one module per command; parse, call, render. Nothing heavy is imported before it is needed."""
