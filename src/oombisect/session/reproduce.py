"""The command lines that show a verdict again."""

from __future__ import annotations

import shlex

from oombisect.search.conclusion import Conclusion
from oombisect.session.commit_line import CommitLine
from oombisect.session.opening import Workshop
from oombisect.session.request import BisectRequest, ProbeRequest


def reproduce_commands(
    conclusion: Conclusion, line: CommitLine, request: BisectRequest, workshop: Workshop
) -> tuple[str, ...]:
    """Probes of the first step's two sides, or of the ends where there is no step."""
    if conclusion.steps:
        pair = (conclusion.steps[0].parent, conclusion.steps[0].index)
    else:
        pair = (0, len(line.targets) - 1)
    options = probe_options(request.probe, workshop)
    return tuple(shlex.join(["oombisect", "probe", line.targets[index].key[:12], *options]) for index in pair)


def probe_options(request: ProbeRequest, workshop: Workshop) -> list[str]:
    """The options that make `probe` measure what the session measured."""
    options = ["--recipe", request.recipe, "--gpu", workshop.device.name]
    if request.limit_bytes:
        options += ["--limit", f"{request.limit_bytes}"]
    for name, value in (("--repo", request.repo), ("--megatron", request.megatron), ("--python", request.python)):
        if value:
            options += [name, value]
    for override in request.overrides:
        options += ["--set", override]
    for name, value in request.env.items():
        options += ["--env", f"{name}={value}"]
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
