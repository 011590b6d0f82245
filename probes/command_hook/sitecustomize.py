"""Loaded by every Python process of a probed command, before its own code: lets the probe watch what it does to memory.

The driver puts this folder first on PYTHONPATH and names a job in OOMBISECT_COMMAND_JOB; `site` imports what is called
`sitecustomize`. The `sitecustomize` that would have been imported otherwise is loaded all the same. Whatever goes wrong
here, the command runs: a probe that learnt nothing is told from one that measured.
"""

import importlib.machinery
import importlib.util
import os
import sys
import traceback

_HERE = os.path.dirname(os.path.abspath(__file__))
_JOB = "OOMBISECT_COMMAND_JOB"


def _load_next() -> None:
    """Runs the `sitecustomize` this one stands before, as the module of that name."""
    path = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != os.path.realpath(_HERE)]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _attach(job: str) -> None:
    """Loads the probe's package by its place, so that nothing else of that folder becomes importable."""
    package = os.path.join(os.path.dirname(_HERE), "probe_support")
    spec = importlib.util.spec_from_file_location(
        "probe_support", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["probe_support"] = module
    spec.loader.exec_module(module)
    from probe_support.command.attach import attach

    attach(job)


if os.environ.get(_JOB):
    try:
        _attach(os.environ[_JOB])
    except Exception:
        print("oombisect: the probe could not attach itself to this process", file=sys.stderr)
        traceback.print_exc()
_load_next()
