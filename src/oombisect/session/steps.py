"""From the search's steps to judged ones: why each needs memory, proved by further probes where that is in doubt.

Reserved minus allocated proves nothing: it is mostly cache. What a step strands is the growth of *needed capacity*, the
smallest device the run survives on, found by probes with a capacity enforced; and an A/B probe with expandable segments
shows whether the allocator could have done better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from oombisect.memory.capacity import NeededCapacity
from oombisect.memory.classify import Classification, PointMemory, classify
from oombisect.probing.workload import EXPANDABLE, PLAIN, Variation
from oombisect.readings import Outcome, RankReading
from oombisect.recipes.config_diff import diff
from oombisect.search.conclusion import Conclusion, Step
from oombisect.session.measuring import Measured, Measurer, Target
from oombisect.session.verdict import StepVerdict
from oombisect.units import MIB

_FINEST = 64 * MIB


class Targets(Protocol):
    """The points of a line, and the commits that a point stands for besides its own."""

    @property
    def targets(self) -> Sequence[Target]: ...
    def lump(self, index: int) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges the steps of one conclusion."""

    line: Targets
    measurer: Measurer
    limit: int
    conclusion: Conclusion

    def steps(self) -> tuple[StepVerdict, ...]:
        """Every step, in the conclusion's order."""
        return tuple(self.judge(step) for step in self.conclusion.steps)

    def judge(self, step: Step) -> StepVerdict:
        """Classify one step; one that is named gets the probes its class needs."""
        parent, point = self.line.targets[step.parent], self.line.targets[step.index]
        before, after = (self.measurer.measure(target, "measure") for target in (parent, point))
        grew = step.delta.device >= 0
        # What fell is what the larger side had more of.
        small, large = ((parent, before), (point, after)) if grew else ((point, after), (parent, before))
        proof, evidence = self._classify(step, small, large)
        return StepVerdict(
            point=point.key,
            parent=parent.key,
            subject=point.subject,
            repo=point.repo,
            delta={
                "allocated": step.delta.allocated,
                "reserved": step.delta.reserved,
                "external": step.delta.external,
            },
            kind=proof.kind,
            confirmed=step.confirmed,
            named=step.named and not self.line.lump(step.index),
            crosses_limit=step.index == self.conclusion.crossing,
            blurred=self._suspects(step),
            evidence={
                **evidence,
                "classification": dict(proof.evidence),
                "fragmentation_bytes": _signed(proof.fragmentation_bytes, grew),
                "phases": dict(step.phases),
                "censored": step.censored,
                **config_evidence(before, after),
                **_submodule(parent, point),
            },
        )

    def _suspects(self, step: Step) -> tuple[str, ...]:
        """The commits that may have brought a step, where it is not one alone."""
        if step.blurred_with:
            indices = range(step.blurred_with[0], step.blurred_with[1] + 1)
            return tuple(sha for i in indices for sha in self.line.lump(i) or (self.line.targets[i].key,))
        return self.line.lump(step.index)

    def _classify(
        self, step: Step, small: tuple[Target, Measured], large: tuple[Target, Measured]
    ) -> tuple[Classification, dict[str, Any]]:
        rank = _deciding(large[1])
        memories = [self._memory(target, measured, rank) for target, measured in (small, large)]
        if step.named and step.confirmed != "not-tried" and not step.censored and rank is not None:
            resolution = max(_FINEST, step.delta.size // 8)
            return self._proved(small, large, rank, resolution, memories)
        return classify(memories[0], memories[1], self.limit), {}

    def _proved(
        self,
        small: tuple[Target, Measured],
        large: tuple[Target, Measured],
        rank: int,
        resolution: int,
        memories: Sequence[PointMemory],
    ) -> tuple[Classification, dict[str, Any]]:
        expandable = Variation(alloc_conf=EXPANDABLE)
        target, _ = large
        other = self.measurer.measure(target, "expandable", expandable, ranks=(rank,))
        survives = self.measurer.fits(target, other, self.limit, expandable)
        needed = [self.needed_capacity(t, m, rank, resolution) for t, m in (small, large)]
        needed_expandable = self.needed_capacity(target, other, rank, resolution, expandable)
        low = _with(memories[0], needed[0])
        high = _with(memories[1], needed[1], needed_expandable, survives)
        evidence = {
            "needed_capacity": {
                "rank": rank,
                "smaller_bytes": needed[0],
                "larger_bytes": needed[1],
                "larger_expandable_bytes": needed_expandable,
                "resolution_bytes": resolution,
            },
            "expandable_segments": {
                "outcome": str(other.reading.outcome),
                "reason": other.reading.reason or None,
                "peak_reserved": other.reading.peak_reserved,
                "fits": survives,
            },
        }
        return classify(low, high, self.limit, resolution), evidence

    def _memory(self, target: Target, measured: Measured, rank: int | None) -> PointMemory:
        found = _rank(measured, rank)
        fits = self.measurer.fits(target, measured, self.limit) is not False
        if found is None:
            return PointMemory(0, 0, fits=fits)
        return PointMemory(found.peak_allocated, found.peak_reserved, found.external, fits=fits)

    def needed_capacity(
        self, target: Target, measured: Measured, rank: int, resolution: int, variation: Variation = PLAIN
    ) -> int | None:
        """The smallest device `rank` of `target` survives on, bytes, at most `resolution` above the true value.

        None where the measurement is no exact one, so that there is no bound to start from.
        """
        found = _rank(measured, rank)
        if found is None or measured.reading.outcome is not Outcome.EXACT:
            return None
        floor = found.peak_allocated + found.external
        search = NeededCapacity.start(floor, found.peak_device, resolution)
        if floor <= self.limit < found.peak_device:
            fits = self.measurer.fits(target, measured, self.limit, variation)
            search = search if fits is None else search.observe(self.limit, fits)
        while (capacity := search.next()) is not None:
            survived = self.measurer.survives(target, found, capacity, variation, "capacity")
            if survived is None:
                return None
            search = search.observe(capacity, survived)
        return search.result


def config_evidence(before: Measured, after: Measured) -> dict[str, Any]:
    """Whether recipe or code changed: the recipe functions and the resolved config's differing leaves."""
    if before.config is None or after.config is None:
        return {}
    return {
        "recipe_function": {"before": before.reading.recipe_function, "after": after.reading.recipe_function},
        "config_changes": [change.to_json() for change in diff(before.config, after.config)],
    }


def _submodule(parent: Target, point: Target) -> dict[str, Any]:
    if parent.submodule == point.submodule:
        return {}
    return {"submodule": {"before": parent.submodule, "after": point.submodule}}


def _signed(size: int | None, grew: bool) -> int | None:
    """A size told of the larger side against the smaller, signed like the step."""
    return size if size is None or grew else -size


def _deciding(measured: Measured) -> int | None:
    """The rank that takes most of its device."""
    return max(measured.reading.ranks, key=lambda r: (r.peak_device, -r.rank)).rank if measured.reading.ranks else None


def _rank(measured: Measured, rank: int | None) -> RankReading | None:
    ranks: Mapping[int, RankReading] = {reading.rank: reading for reading in measured.reading.ranks}
    return ranks.get(rank) if rank is not None else None


def _with(
    memory: PointMemory, needed: int | None, needed_expandable: int | None = None, fits_expandable: bool | None = None
) -> PointMemory:
    return PointMemory(
        memory.peak_allocated,
        memory.peak_reserved,
        memory.external,
        needed,
        needed_expandable,
        memory.fits,
        fits_expandable,
    )
