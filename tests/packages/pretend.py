"""A Python environment whose probes are pretended: what they measure depends on the packages installed in it.

The base has a `sitecustomize` that answers for `bridge_train.py` by `memories.json`, a table of package, version and
what that version adds to the memory that the toy history tells of. Environments made over it are linked, so that they
pretend by the same rules; uv, the environments, the search, the store and the processes are real.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from oombisect.session.releases_request import ReleasesRequest
from oombisect.session.releases_run import bisect_releases
from oombisect.session.request import BisectRequest, ProbeRequest
from oombisect.session.verdict import Report
from tests.session import toy
from tests.session.toy import MIB
from tests.session.world import Quiet, World

from .wheels import make_environment, make_wheel

_PRETEND = """
import sys
arguments = sys.orig_argv[1:]
if arguments and arguments[0].endswith(("worker.py", "bridge_train.py")):
    import hashlib, importlib.metadata, json, os
    from pathlib import Path
    if arguments[0].endswith("worker.py"):
        os._exit(1)  # a pretence has no worker: its probes are started one by one
    job = json.loads(Path(arguments[1]).read_text())
    source = Path(job["source_paths"][0]) / "megatron/bridge/memory"
    told = {{part.name: json.loads(part.read_text()) for part in source.iterdir()}}
    table = json.loads(Path({table!r}).read_text())
    versions = {{d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}}
    added, reason = 0, told.get("unresolved")
    for name, changes in table.items():
        change = changes.get(versions.get(name), 0)
        if isinstance(change, str):
            reason = change
        else:
            added += change << 20
    with open({calls!r}, "a") as calls:
        roots = sorted(job["roots"])
        calls.write(json.dumps({{"versions": versions, "limit": job["limit_bytes"], "roots": roots,
                                "alloc_conf": job["env"].get("PYTORCH_CUDA_ALLOC_CONF")}}) + "\\n")
    allocated, reserved, external = told["allocated"] + added, told["reserved"] + added, 500 << 20
    outcome, oom = "exact", None
    if reason:
        outcome = "unresolved"
    elif job["limit_bytes"] and allocated + external > job["limit_bytes"]:
        outcome = "censored"
        oom = dict(phase="step_2", message="CUDA out of memory", requested=1, capacity=2, free=3, allocated=4,
                   reserved=5)
    phase = dict(allocated_peak=allocated, allocated_end=allocated, reserved_peak=reserved, reserved_end=reserved,
                 requested_peak=allocated)
    config = {{"a": 1}}
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    result = dict(
        schema=1, outcome=outcome, reason=reason, rank=job["rank"], world_size=1, suggested_ranks=[0], oom=oom,
        phases={{"step_1": phase, "step_2": phase}} if outcome != "unresolved" else {{}}, external=external,
        recipe_function="toy:toy_1b_pretrain_config()", config=config,
        config_hash=hashlib.sha256(text.encode()).hexdigest(), versions=versions, imported=[], simulated=True, notes=[],
        attention_backend="", snapshot=None, trace_hash=None, allocator_settings="",
    )
    path = Path(job["out"]) / f"result-{{job['rank']}}.json"
    path.with_suffix(".tmp").write_text(json.dumps(result))
    path.with_suffix(".tmp").rename(path)
    os._exit(0)
"""


def lock_text(pins: Mapping[str, str]) -> str:
    """A lock of these versions as uv writes it: "" is a package left to the container, `git+` one built from source."""
    lines = ["version = 1", "revision = 2", 'requires-python = ">=3.10"']
    for name, version in pins.items():
        source = '{ registry = "https://index.invalid/simple" }'
        files = f'wheels = [{{ url = "https://files.invalid/{name}-{version}-py3-none-any.whl" }}]'
        if version.startswith("git+"):
            source, files = '{ git = "https://git.invalid/x.git?rev=abc#abc" }', ""
        elif not version:
            version, files = "9.9", ""
        needed = {"transformers": "tokenizers", "transformer-engine": "transformer-engine-cu13"}.get(name)
        needs = f'dependencies = [{{ name = "{needed}" }}]' if needed in pins else ""
        lines += ["", "[[package]]", f'name = "{name}"', f'version = "{version.removeprefix("git+")}"']
        lines += [f"source = {source}", needs, files]
    return "\n".join(lines) + "\n"


class PackageWorld(World):
    """A toy history, an index of wheels, and a base environment that pretends."""

    def __init__(self, folder: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder)
        self.index = index
        self.watcher = Quiet()
        self.table = folder / "memories.json"
        self.table.write_text("{}")
        monkeypatch.setattr("oombisect.session.opening.open_device", lambda *_: toy.ToyDevice())

    def environment(self, *requirements: str) -> None:
        """Make the base environment of these packages of the index."""
        self.python = make_environment(self.folder / "base", *requirements)
        site = next((self.folder / "base").glob("lib/python*/site-packages"))
        text = _PRETEND.format(table=str(self.table), calls=str(self.calls))
        (site / "sitecustomize.py").write_text(text)

    def releases_of(
        self, name: str, changes: Mapping[str, int | str], requires: Mapping[str, list[str]] | None = None
    ) -> None:
        """Have releases of a package, each with the MiB it adds, or why a probe fails with it."""
        for version in changes:
            make_wheel(self.index, name, version, (requires or {}).get(version, []))
        self.table.write_text(json.dumps({**json.loads(self.table.read_text()), name: changes}))

    def locked(self, points: Sequence[tuple[Mapping[str, Any] | None, Mapping[str, str] | None]]) -> None:
        """A history of (what the code takes, what `uv.lock` pins); None leaves either as it is."""
        (self.repo / "src").mkdir()
        for place, (memory, pins) in enumerate(points):
            if pins is not None:
                (self.repo / "uv.lock").write_text(lock_text(pins))
            if memory is not None:
                self._write_memory(memory)
            if place == 0:
                toy.git(self.repo, "init", "--quiet", "--initial-branch=main")
            toy.git(self.repo, "add", "--all")
            toy.git(self.repo, "commit", "--quiet", "--allow-empty", "-m", f"change {place}")
            self.shas.append(toy.git(self.repo, "rev-parse", "HEAD"))

    def _write_memory(self, memory: Mapping[str, Any]) -> None:
        package = self.repo / "src/megatron/bridge"
        for folder in ("memory", "recipes/toy"):
            (package / folder).mkdir(parents=True, exist_ok=True)
        recipe = "def toy_1b_pretrain_config() -> 'ConfigContainer':\n    ...\n"
        (package / "recipes/toy/toy.py").write_text(recipe)
        for name, value in memory.items():
            (package / "memory" / name).write_text(json.dumps(value) + "\n")

    def per_lock(self, **options: Any) -> Report:
        """Run `oombisect run --env per-lock` over the whole history."""
        return self.run([], probe={"per_lock": True, **options.pop("probe", {})}, **options)

    def releases(
        self,
        package: str,
        range: str,
        *,
        memory: Mapping[str, Any] | None = None,
        session: str | None = None,
        **options: Any,
    ) -> Report:
        """Run `oombisect releases` over the toy history's only commit."""
        if not self.shas:
            self.shas = toy.history(self.repo, [memory or toy.mib(8000)])
        probe = ProbeRequest(
            recipe=toy.RECIPE, repo=str(self.repo), python=str(self.python), limit_bytes=10_000 * MIB,
            **options.pop("probe", {}),
        )  # fmt: skip
        request = ReleasesRequest(package, BisectRequest(range, probe, **options))
        with self.store() as store:
            if session is not None:
                request = ReleasesRequest.from_json(store.resume_session(session).spec.arguments)
            return bisect_releases(
                store, request, watcher=self.watcher, cwd=self.folder, cache=self.folder / "cache", command=("test",),
                session=session, on_session=lambda _: None,
            )  # fmt: skip
