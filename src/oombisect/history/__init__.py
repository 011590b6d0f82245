"""What oombisect remembers: sessions, probes and readings in one SQLite file (docs/database.md describes it).

`store` opens it; `records` are the values that go in and come out; `location` says where the file lies.
Nothing is imported here: `store` brings sqlite-utils, which `oombisect --help` must not pay for.
"""
