"""A toy history and a toy probe: everything but torch and Bridge is real.

The history is a git repository in Bridge's layout whose `memory` folder says what a probe would measure there. The toy
interpreter answers for `bridge_train.py` by that file, as a process of its own, and is a plain Python otherwise.
`per_a` is added for each 1 of the config's `a`.
A Megatron-LM submodule may have such a folder too (`megatron/core/memory`): its `added*` files are added to what Bridge
takes, its `cached*` files to what is reserved, `together` is what both add if each has it, and `api` must be one of
Bridge's `apis`.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 1 << 20
RECIPE = "toy_1b_pretrain"

_TOY_PROBE = """#!{python}
import json, os, shutil, sys, time
from pathlib import Path
if len(sys.argv) > 1 and sys.argv[1].endswith("worker.py"):
    sys.exit("a toy has no worker: its probes are started one by one")
if len(sys.argv) < 2 or not sys.argv[1].endswith("bridge_train.py"):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
job = json.loads(Path(sys.argv[2]).read_text())
parts = (Path(job["source_paths"][0]) / "megatron/bridge/memory").iterdir()
told = {{part.name: json.loads(part.read_text()) for part in parts}}
told |= told.get("ranks", {{}}).get(str(job["rank"]), {{}})
core = Path(job["source_paths"][-1]) / "megatron/core/memory"
if core.is_dir():
    core = {{part.name: json.loads(part.read_text()) for part in core.iterdir()}}
    more = sum(size for name, size in core.items() if name.startswith("added"))
    more += told.get("together", 0) if core.get("together") else 0
    told |= {{name: told[name] + more for name in ("allocated", "reserved")}}
    told["reserved"] += sum(size for name, size in core.items() if name.startswith("cached"))
    if core["api"] not in told["apis"]:
        told["unresolved"] = "ImportError: Megatron-LM has no api of " + str(told["apis"])
out = Path(job["out"])
config = told.setdefault("config", {{"a": 1}})
for override in job["overrides"]:
    name, _, value = override.partition("=")
    if name not in config:
        told["unresolved"] = "override of unknown key " + name
    config[name] = json.loads(value)
if job["config_file"]:
    frozen = json.loads(Path(job["config_file"]).read_text())
    if absent := sorted(name for name in set(frozen) - set(config) if frozen[name]):
        told["unresolved"] = "the frozen configuration sets " + ", ".join(absent) + ", which this commit does not have"
    config |= frozen
if job["describe"]:
    (out / "result-0.json").write_text(json.dumps(dict(outcome="described", reason=None, given=config, config=config,
        recipe_function="toy", notes=[])))
    sys.exit()
for name in ("allocated", "reserved"):
    told[name] += told.get("per_a", 0) * config.get("a", 0)
with open({calls!r}, "a") as calls:
    calls.write(json.dumps({{"told": told, "limit": job["limit_bytes"], "env": job["env"]}}) + "\\n")
time.sleep(told.get("sleep", 0.0))
if "exit" in told:
    sys.exit(told["exit"])
if "signal" in told:
    os.kill(os.getpid(), told["signal"])
if "limited_signal" in told and job["limit_bytes"]:
    os.kill(os.getpid(), told["limited_signal"])
expandable = "expandable" in json.dumps(job["env"])
told |= told.get("expandable", {{}}) if expandable else {{}}
snapshot = None
if "snapshot" in told:
    snapshot = f"snapshot-{{job['rank']}}.pickle.gz"
    shutil.copy(told["snapshot"], out / snapshot)
allocated, reserved, external = told["allocated"], told["reserved"], told.get("external", 500 << 20)
needed = told.get("needed", allocated) + external
if expandable and "expandable" not in told:
    reserved = needed = allocated + external
oom = None
outcome = "exact"
if told.get("unresolved"):
    outcome = "unresolved"
elif job["limit_bytes"] and needed > job["limit_bytes"]:
    outcome = "censored"
    oom = dict(phase="step_2", message="CUDA out of memory", requested=1, capacity=2, free=3, allocated=4, reserved=5)
phase = dict(allocated_peak=allocated, allocated_end=allocated, reserved_peak=reserved, reserved_end=reserved,
             requested_peak=told.get("requested", allocated))
result = dict(
    schema=1, outcome=outcome, reason=told.get("unresolved"), rank=job["rank"], world_size=told.get("world_size", 1),
    suggested_ranks=told.get("suggested_ranks", [0]),
    phases={{"step_1": phase, "step_2": phase}} if outcome != "unresolved" else {{}}, external=external, oom=oom,
    recipe_function="toy:toy_1b_pretrain_config()", config=told.get("config", {{"a": 1}}),
    config_hash=__import__("hashlib").sha256(
        json.dumps(told.get("config", {{"a": 1}}), sort_keys=True, separators=(",", ":")).encode()).hexdigest(),
    versions={{"torch": "toy"}}, imported=[], simulated=True, notes=[], attention_backend="",
    snapshot=snapshot, trace_hash=told.get("trace"), allocator_settings="expandable" if expandable else "",
)
path = out / f"result-{{job['rank']}}.json"
path.with_suffix(".tmp").write_text(json.dumps(result))
path.with_suffix(".tmp").rename(path)
"""


@dataclass(frozen=True)
class ToyDevice:
    """A virtual device without a virtual GPU."""

    capacity: int = 10_000 * MIB
    name: str = "virtual:toy"
    simulated: bool = True
    count: int = 1
    process_group: str = "fake"

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"kind": "toy"}

    def environment(self, limit_bytes: int | None) -> dict[str, str]:
        return {}


def git(repo: Path, *arguments: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in
            (("NAME", "a"), ("EMAIL", "a@b"), ("DATE", "1700000000 +0000"))}  # fmt: skip
    return subprocess.run(
        ["git", "-C", str(repo), *arguments], env=env, check=True, capture_output=True, text=True
    ).stdout.strip()


def history(
    root: Path, memories: Sequence[Mapping[str, Any] | None], subjects: Mapping[int, str] | None = None
) -> list[str]:
    """A repository with one commit per entry; None is a commit that no probe can see. Returns the shas in order.

    `subjects`: those of some commits, by their number.
    """
    package = root / "src/megatron/bridge"
    (package / "recipes/toy").mkdir(parents=True)
    git(root, "init", "--quiet", "--initial-branch=main")
    (package / "recipes/toy/toy.py").write_text("def toy_1b_pretrain_config() -> 'ConfigContainer':\n    ...\n")
    shas = []
    for number, memory in enumerate(memories):
        if memory is None:
            (root / "README.md").write_text(f"text {number}\n")
        else:
            shutil.rmtree(package / "memory", ignore_errors=True)
            (package / "memory").mkdir()
            for name, value in memory.items():  # a file each, so that a change of one reverts cleanly
                (package / "memory" / name).write_text(json.dumps(value) + "\n")
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "--allow-empty", "-m", (subjects or {}).get(number, f"change {number}"))
        shas.append(git(root, "rev-parse", "HEAD"))
    return shas


def interpreter(folder: Path) -> tuple[Path, Path]:
    """The toy interpreter, and the file it notes its probes in, a line each."""
    calls = folder / "calls.jsonl"
    calls.touch()
    path = folder / "toy-python"
    path.write_text(_TOY_PROBE.format(python=sys.executable, calls=str(calls)))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path, calls


def ranks(*memories: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A memory of several ranks, in order."""
    numbers = {"world_size": len(memories), "suggested_ranks": list(range(len(memories)))}
    return {**memories[0], **numbers, "ranks": {str(i): memory for i, memory in enumerate(memories)}, **more}


def mib(allocated: int, reserved: int | None = None, **more: Any) -> dict[str, Any]:
    """A memory: sizes in MiB."""
    sizes = {name: value * MIB for name, value in more.items() if name in ("needed", "external", "requested")}
    rest = {name: value for name, value in more.items() if name not in sizes}
    return {"allocated": allocated * MIB, "reserved": (reserved or allocated + 100) * MIB, **sizes, **rest}
