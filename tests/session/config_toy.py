"""A toy interpreter for config diffs: it makes configs and answers for their memory by a truth told in a file."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from oombisect.history.records import ProbeSpec
from oombisect.history.store import Store
from oombisect.probing.guard import Ended
from oombisect.session.config_request import ConfigRequest, SideRequest
from oombisect.session.config_run import bisect_config
from oombisect.session.measuring import Watcher
from oombisect.session.request import ProbeRequest
from oombisect.session.verdict import Report

from . import toy
from .toy import MIB
from .world import Quiet, World

_PROBE = """#!{python}
import hashlib, json, os, sys, time
from pathlib import Path
if len(sys.argv) > 1 and sys.argv[1].endswith("worker.py"):
    sys.exit("a toy has no worker: its probes are started one by one")
if len(sys.argv) < 2 or not sys.argv[1].endswith("bridge_train.py"):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
truth = json.loads(Path({truth!r}).read_text())
job = json.loads(Path(sys.argv[2]).read_text())
out = Path(job["out"])

def put(config, path, value):
    *names, last = path.split(".")
    for name in names:
        config = config.setdefault(name, {{}})
    config[last] = value

def get(config, path):
    for name in path.split("."):
        config = config.get(name) if isinstance(config, dict) else None
    return config

def laid_over(config, other, path=""):
    for name, value in other.items():
        where = path + name
        if where in truth["fixed"]:
            continue
        if isinstance(value, dict) and isinstance(config.get(name), dict) and name != "env_vars":
            laid_over(config[name], value, where + ".")
        else:
            config[name] = value

def text(config):
    return json.dumps(config, sort_keys=True, separators=(",", ":"))

config = json.loads(text(truth["config"]))
for path, value in job["recipe"]["kwargs"].items():
    put(config, path.replace("__", "."), value)
if job["config_file"]:
    laid_over(config, json.loads(Path(job["config_file"]).read_text()))
for override in job["overrides"]:
    path, _, value = override.partition("=")
    try:
        value = json.loads(value)
    except ValueError:
        pass
    put(config, path, value)
given = json.loads(text(config))
for path, value in truth["settled"].items():
    put(config, path, value)
env = {{**{{k: str(v) for k, v in config.get("env_vars", {{}}).items()}}, **job["env"]}}

def is_set(key):
    path, _, value = key.partition("=")
    found = env.get(path[4:]) if path.startswith("env:") else get(config, path)
    return str(found) == value

def write(result):
    path = out / f"result-{{job['rank']}}.json"
    path.with_suffix(".tmp").write_text(json.dumps(result))
    path.with_suffix(".tmp").rename(path)
    sys.exit(0)

common = dict(schema=1, rank=job["rank"], recipe_function="toy:toy_1b_pretrain_config()", config=config,
    config_hash=hashlib.sha256(text(config).encode()).hexdigest(), notes=[], versions={{"torch": "toy"}})
if job.get("describe"):
    write(dict(common, outcome="described", reason=None, given=given))
with open({calls!r}, "a") as calls:
    calls.write(json.dumps({{"config": config, "env": env}}) + "\\n")
time.sleep(truth["sleep"])
for one, other in truth["needs"]:
    if is_set(one) and not is_set(other):
        write(dict(common, outcome="unresolved", reason=f"AssertionError: {{one}} needs {{other}}", phases={{}}))
size = truth["base"] + sum(added for key, added in truth["adds"].items() if is_set(key))
size += sum(added for one, other, added in truth["together"] if is_set(one) and is_set(other))
phase = dict(
    allocated_peak=size, allocated_end=size, requested_peak=size, reserved_peak=size + (100 << 20), reserved_end=size,
    allocations=sum(added for key, added in truth["allocates"].items() if is_set(key)))
outcome, oom = "exact", None
if job["limit_bytes"] and size + (500 << 20) > job["limit_bytes"]:
    outcome = "censored"
    oom = dict(phase="step_2", message="CUDA out of memory", requested=1, capacity=2, free=3, allocated=4, reserved=5)
write(dict(common, outcome=outcome, reason=None, world_size=1, suggested_ranks=[0],
    phases={{"step_1": phase, "step_2": phase}}, external=500 << 20, oom=oom))
"""


@dataclass
class Truth:
    """What a config is and costs. A key with its value is `model.a=2` or `env:NAME=1`.

    `config` is the recipe's own; `adds` are bytes; `allocates` are allocations; `together` pairs and bytes; `needs`:
    the first is rejected without the second; `settled` is what a probe sets itself; `fixed` are paths that no config
    laid over the recipe's changes.
    """

    config: Mapping[str, Any]
    adds: Mapping[str, int] = field(default_factory=dict)
    together: list[tuple[str, str, int]] = field(default_factory=list)
    needs: list[tuple[str, str]] = field(default_factory=list)
    settled: Mapping[str, Any] = field(default_factory=dict)
    fixed: list[str] = field(default_factory=list)
    allocates: Mapping[str, int] = field(default_factory=dict)
    base: int = 8000 * MIB
    sleep: float = 0.0


class ConfigWorld(World):
    """Sessions over config diffs, run as the command line runs them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.shas = toy.history(self.repo, [toy.mib(8000)])
        self.truth = folder / "truth.json"
        self.python.write_text(_PROBE.format(python=sys.executable, calls=str(self.calls), truth=str(self.truth)))
        self.python.chmod(self.python.stat().st_mode | stat.S_IXUSR)

    def tell(self, truth: Truth) -> None:
        self.truth.write_text(json.dumps(asdict(truth)))

    def diff(
        self,
        truth: Truth,
        good: SideRequest,
        bad: SideRequest,
        *,
        session: str | None = None,
        on_session: Callable[[str], None] = lambda _: None,
        stop_after: int | None = None,
        watcher: Watcher | None = None,
        **options: Any,
    ) -> Report:
        self.tell(truth)
        settings = {"limit_bytes": 10_000 * MIB, "recipe": toy.RECIPE, **options.pop("probe", {})}
        probe = ProbeRequest(repo=str(self.repo), python=str(self.python), **settings)
        request = ConfigRequest(good, bad, probe, **options)
        with self.store() as store:
            if session is not None:
                store.resume_session(session)
            if stop_after is not None:
                _stop(store, stop_after)
            return bisect_config(
                store, request, watcher=watcher or Quiet(), cwd=self.folder, cache=self.folder / "cache",
                command=("test",), session=session, on_session=on_session,
            )  # fmt: skip


class Stopping(Exception):
    """Raised in the place of one more probe."""


def _stop(store: Store, after: int) -> None:
    """Let no more than so many probes begin."""
    begin, begun = store.begin_probe, list[ProbeSpec]()

    def begin_probe(spec: ProbeSpec) -> int:
        if len(begun) >= after:
            raise Stopping
        begun.append(spec)
        return begin(spec)

    store.begin_probe = begin_probe  # type: ignore[method-assign]


def run_here(command: Sequence[str], **_: Any) -> Ended:
    """A toy probe in this process, which is far faster: what `run_guarded` would have said."""
    script = compile(Path(command[0]).read_text(), command[0], "exec")
    before, code = sys.argv, 0
    sys.argv = list(command)
    try:
        exec(script, {"__name__": "__main__"})
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        sys.argv = before
    return Ended(code, None, 0.0, 0)
