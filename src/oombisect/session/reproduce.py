"""The command lines that show a verdict again."""

from __future__ import annotations

import shlex
from dataclasses import replace

from oombisect import hints
from oombisect.search.conclusion import Conclusion
from oombisect.session.commit_line import CommitLine
from oombisect.session.opening import Workshop
from oombisect.session.request import BisectRequest, ProbeRequest
from oombisect.session.verdict import StepVerdict, Verdict

_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def reproduce_commands(
    conclusion: Conclusion, verdict: Verdict, line: CommitLine, request: BisectRequest, workshop: Workshop
) -> tuple[str, ...]:
    """Fresh probes of both sides of every named step, those inside a roll included, or of the ends where none is named.

    Where what moved is not peak allocated the allocator may strand memory. What decides that is added: both sides with
    the limit written out, and the larger one with expandable segments.
    """

    def probe(point: int | str, *more: str, limit: int | None = request.probe.limit_bytes) -> str:
        options = probe_options(replace(request.probe, limit_bytes=limit), workshop)
        given = ["--", *request.probe.command] if request.probe.command else []
        key = point if isinstance(point, str) else line.targets[point].key
        return shlex.join(["oombisect", "probe", key[:12], *options, *more, "--fresh", *given])

    commands: list[str] = []
    for step in conclusion.steps:
        if step.named:
            sides = (step.parent, step.index)
            commands += [probe(index) for index in sides]
            if 2 * abs(step.delta.allocated) < abs(step.delta.reserved):
                larger = step.index if step.delta.reserved > 0 else step.parent
                commands += [probe(index, limit=workshop.limit) for index in sides]
                commands.append(probe(larger, "--env", _EXPANDABLE, limit=workshop.limit))
    for outer in verdict.steps:
        descent = outer.evidence.get("descent", {})
        for inside in map(StepVerdict.from_json, descent.get("steps", ())):
            if inside.named and inside.repo == "megatron-lm":
                options = [*probe_options(request.probe, workshop), "--fresh"]
                bridge = ["oombisect", "probe", descent["base"]["bridge"][:12], "--megatron-commit"]
                commands += [shlex.join([*bridge, side[:12], *options]) for side in (inside.parent, inside.point)]
            elif inside.named:
                commands += [probe(side) for side in (inside.parent, inside.point)]
    return tuple(dict.fromkeys(commands or [probe(0), probe(len(line.targets) - 1)]))


def probe_options(request: ProbeRequest, workshop: Workshop) -> list[str]:
    """The options that make `probe` measure what the session measured; a command comes after all of them."""
    options = [*(["--recipe", request.recipe] if request.recipe else []), "--gpu", workshop.device.name]
    options += hints.database_option()
    if request.limit_bytes:
        options += ["--limit", f"{request.limit_bytes}"]
    for name, value in (("--repo", request.repo), ("--megatron", request.megatron), ("--python", request.python)):
        if value:
            options += [name, value]
    for override in request.overrides:
        options += ["--set", override]
    if request.build:
        options += ["--build", request.build]
    for name in request.prepare:
        options += ["--prepare", name]
    if request.until_exit:
        options.append("--until-exit")
    for name, value in request.env.items():
        options += ["--env", f"{name}={value}"]
    if request.per_lock:
        options += ["--env", "per-lock"]
    for hotfix in request.hotfixes:
        options += ["--hotfix", hotfix.source]
    if request.config_of:
        options += ["--freeze-config", request.config_of[:12]]
    if request.ranks:
        options += ["--ranks", ",".join(map(str, request.ranks))]
    numbers = (
        ("--world-size", request.world_size, None),
        ("--iterations", request.iterations, 3),
        ("--micro-batches", request.micro_batches, None),
        ("--moe-skew", request.moe_skew, 1.0),
    )
    for name, number, default in numbers:
        if number != default:
            options += [name, str(number)]
    return options
