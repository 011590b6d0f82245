"""`oombisect check BASE..HEAD`: what a change does to memory, before it is merged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oombisect.axes.commits import parse_range
from oombisect.errors import ExitCode
from oombisect.history.records import SessionSpec
from oombisect.repo.bridge import BridgeRepository
from oombisect.repo.merge import key_of, merged
from oombisect.search.options import Options
from oombisect.session.bisection import Bisection
from oombisect.session.environment_line import EnvironmentLine
from oombisect.session.gate import CheckRequest, growth, measured, nothing_in_common
from oombisect.session.measuring import Measurer, Target, Watcher
from oombisect.session.opening import open_workshop, targets_of
from oombisect.session.stopping import interrupted_unless_finished
from oombisect.session.verdict import Report, StepVerdict

if TYPE_CHECKING:
    from oombisect.history.store import Store


@dataclass(frozen=True, slots=True)
class Checked:
    """What a change does. `report` is that of a search over two points: without the change and with it.

    Args:
        base, head: as resolved.
        min_step: the growth that is too much, bytes.
        notes: what was compared, where that is not BASE with the change merged into it.
    """

    report: Report
    base: str
    head: str
    min_step: int
    notes: tuple[str, ...] = ()

    @property
    def grew(self) -> int | None:
        """Bytes: peak allocated or all of the device, whichever grew more. None: a side told no sizes."""
        good, bad = self.report.good, self.report.bad
        return growth(good, bad) if measured(good) and measured(bad) else None

    @property
    def step(self) -> StepVerdict | None:
        """The change as a judged step; None where it moves less than is looked for."""
        return next(iter(self.report.verdict.steps), None)

    @property
    def over_limit(self) -> bool:
        """It no longer fits the limit, and did without the change."""
        return self.report.bad.fits is False and self.report.good.fits is not False

    @property
    def exit_code(self) -> ExitCode:
        """The process's: GREW, or 0."""
        grew = self.grew
        too_much = self.over_limit or (grew is not None and grew >= self.min_step)
        return ExitCode.GREW if too_much else ExitCode(0)

    def to_json(self) -> dict[str, Any]:
        """The contract of `check --json` (docs/json.md)."""
        report = self.report.to_json()
        return {
            **report,
            "exit": int(self.exit_code),
            "base": self.base,
            "head": self.head,
            "min_step_bytes": self.min_step,
            "grew_bytes": self.grew,
            "over_limit": self.over_limit,
            "notes": list(self.notes),
        }


def check_change(
    store: Store,
    request: CheckRequest,
    *,
    watcher: Watcher,
    cwd: Path,
    cache: Path,
    command: tuple[str, ...],
    on_session: Callable[[str], None] = lambda _: None,
) -> Checked:
    """Probe `request.range` without the change and with it.

    Raises:
        OombisectError: no such commits, a side that cannot be probed, no device.
    """

    def look(repository: BridgeRepository) -> None:
        for end in parse_range(request.range):
            repository.resolve(end)

    with open_workshop(request.probe, cwd=cwd, cache=cache, watcher=watcher, look=look) as workshop:
        request = replace(request, probe=workshop.request)
        repository = workshop.repository
        base, head = (repository.resolve(end) for end in parse_range(request.range))
        without, change, notes = _sides(repository, base, head)
        for sha in (without, change):
            repository.require_bridge(sha)
        for note in notes:
            watcher.say(note)
        make = targets_of(workshop, request.probe, cache)

        def target(sha: str, key: str = "") -> Target:
            told = repository.commit(head if key else sha)
            return make.of(sha, told.subject, repository.relevant_trees(sha), date=told.author_date, key=key)

        merge = change not in (base, head)
        line = EnvironmentLine((target(without), target(change, key_of(head, base) if merge else "")), (0.0, 1.0))
        session = store.create_session(
            SessionSpec(
                kind="check",
                command=command,
                arguments=request.to_json(),
                repo=repository.name,
                recipe=request.probe.label,
                device=workshop.device.name,
                good=without,
                bad=line.targets[1].key,
                limit_bytes=workshop.limit,
            )
        ).id
        on_session(session)
        watcher.say(f"session {session}: {without[:10]} without the change, {head[:10]} with it")
        with interrupted_unless_finished(store, session):
            measurer = Measurer(store, session, workshop.prober, watcher)
            options = Options(
                noise_bytes=0 if workshop.device.simulated else None, min_step_bytes=request.min_step_bytes
            )
            bisection = Bisection(store, session, line, measurer, options, workshop.limit)
            verdict = bisection.verdict(bisection.run())
            workload = workshop.prober.workload.to_json() | {"device": workshop.device.name}
            report = bisection.report(verdict, workload=workload, reproduce=())
            checked = Checked(report, base, head, request.min_step_bytes, notes)
            store.finish_session(session, int(checked.exit_code), checked.to_json())
            return checked


def _sides(repository: BridgeRepository, base: str, head: str) -> tuple[str, str, tuple[str, ...]]:
    """What is compared: the commit without the change, and the one with it."""
    change = merged(repository.mirror, base, head)
    if change is not None:
        return base, change, ()
    fork = repository.merge_base(base, head)
    if fork is None:
        raise nothing_in_common(base, head)
    note = f"{head[:10]} does not merge into {base[:10]} cleanly: it is compared with {fork[:10]}, where they parted"
    return fork, head, (note,)
