"""From the search's steps to judged ones: why each needs memory, proved by further probes where that is in doubt.

What a step strands is the growth of *needed capacity* (`needs`); an A/B probe with expandable segments shows whether
the allocator could have done better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from oombisect.memory.classify import Classification, PointMemory, classify
from oombisect.probing.workload import EXPANDABLE, PLAIN, Variation
from oombisect.readings import Outcome, RankReading
from oombisect.recipes.config_diff import diff
from oombisect.search.conclusion import Conclusion, Step
from oombisect.session.dependencies import dependencies_between
from oombisect.session.measuring import Measured, Measurer, Target
from oombisect.session.needs import Candidate, memory_of, needed_capacities, stranded_evidence
from oombisect.session.verdict import StepVerdict


class Targets(Protocol):
    """The points of a line, and the commits that a point stands for besides its own."""

    @property
    def targets(self) -> Sequence[Target]:
        """The points, from the good end to the bad one."""
        ...

    def lump(self, index: int) -> tuple[str, ...]:
        """The commits that a point stands for, where these are more than its own."""
        ...


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
            change=step.change,
            evidence={
                **evidence,
                "classification": dict(proof.evidence),
                "fragmentation_bytes": _signed(proof.fragmentation_bytes, grew),
                "phases": dict(step.phases),
                "censored": step.censored,
                **config_evidence(before, after),
                **_submodule(parent, point),
                **_dependencies(parent, point, self.measurer),
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
        rank = self._deciding(*large)
        memories = [self._memory(*side, rank) for side in (small, large)]
        if step.named and step.confirmed != "not-tried" and not step.censored and rank is not None:
            return self._proved(small, large, rank, step.delta.size // 8, memories)
        return classify(memories[0], memories[1], self.limit), {}

    def _deciding(self, target: Target, measured: Measured) -> int | None:
        """The rank that takes most of its device, of those that do not fit if there are any."""
        ranks = self.measurer.deciding(target, measured, self.limit)
        return max(ranks, key=lambda r: (r.peak_device, -r.rank)).rank if ranks else None

    def _proved(
        self,
        small: tuple[Target, Measured],
        large: tuple[Target, Measured],
        rank: int,
        coarse: int,
        memories: Sequence[PointMemory],
    ) -> tuple[Classification, dict[str, Any]]:
        expandable = Variation(alloc_conf=EXPANDABLE)
        target, _ = large
        other = self.measurer.measure(target, "expandable", expandable, ranks=(rank,))
        survives, by = self.measurer.fit(target, other, self.limit, expandable)
        candidates = [Candidate(*small), Candidate(*large), Candidate(target, other, expandable)]
        needs = needed_capacities(self.measurer, self.limit, rank, candidates, coarse)
        smaller, larger, larger_expandable = needs.sizes
        low = replace(memories[0], needed_capacity=smaller)
        high = replace(
            memories[1],
            needed_capacity=larger,
            needed_capacity_expandable=larger_expandable,
            fits_expandable=survives,
        )
        evidence: dict[str, Any] = {
            "needed_capacity": {
                "rank": rank,
                "method": needs.method,
                "smaller_bytes": smaller,
                "larger_bytes": larger,
                "larger_expandable_bytes": larger_expandable,
                "resolution_bytes": needs.resolution,
            },
            "expandable_segments": {
                "outcome": str(other.reading.outcome),
                "reason": other.reading.reason or None,
                "peak_reserved": other.reading.peak_reserved,
                "fits": survives,
                "fits_by": by,
            },
        }
        found = classify(low, high, self.limit, needs.resolution)
        if found.kind in ("fragmentation", "mixed"):
            evidence["stranded"] = stranded_evidence(self.measurer, candidates[1], rank, self.limit)
        if found.kind == "fragmentation" and low.fits and not high.fits:
            enforced = self._enforced(target, large[1], other, rank)
            evidence["limit_enforced"] = enforced
            if reason := _unproved(survives, enforced):
                return replace(found, kind="unknown", evidence={**found.evidence, "reason": reason}), evidence
        return found, evidence

    def _enforced(self, target: Target, plain: Measured, expandable: Measured, rank: int) -> dict[str, Any]:
        """The A/B test: probes with the limit enforced, under the point's own settings and with expandable segments."""
        answers: dict[str, Any] = {"limit_bytes": self.limit}
        for name, measured, variation in (
            ("survives", plain, PLAIN),
            ("survives_with_expandable_segments", expandable, Variation(alloc_conf=EXPANDABLE)),
        ):
            found = _rank(measured, rank)
            answers[name] = (
                None
                if found is None or measured.reading.outcome is not Outcome.EXACT
                else self.measurer.survives(target, found, self.limit, variation, "limit")
            )
        return answers

    def _memory(self, target: Target, measured: Measured, rank: int | None) -> PointMemory:
        found = _rank(measured, rank)
        fits = self.measurer.fits(target, measured, self.limit) is not False
        if found is None:
            return PointMemory(0, 0, fits=fits)
        return memory_of(self.measurer, measured, found, fits)


def _unproved(survives: bool | None, enforced: Mapping[str, Any]) -> str:
    """Why a step across the limit cannot be called fragmentation, whatever was computed; empty if it can."""
    if enforced["survives"] is True:
        return "a replay runs out of memory, yet a probe with the limit enforced does not"
    if enforced["survives_with_expandable_segments"] is False:
        return "with expandable segments a probe with the limit enforced runs out of memory too"
    if survives is not True and enforced["survives_with_expandable_segments"] is not True:
        return "whether another layout fits is not shown: expandable segments told nothing"
    return ""


def config_evidence(before: Measured, after: Measured) -> dict[str, Any]:
    """Whether recipe or code changed: the recipe functions and the resolved config's differing leaves."""
    if before.config is None or after.config is None:
        return {}
    return {
        "recipe_function": {"before": before.reading.recipe_function, "after": after.reading.recipe_function},
        "config_changes": [change.to_json() for change in diff(before.config, after.config)],
    }


def _submodule(parent: Target, point: Target) -> dict[str, Any]:
    if point.repo != "bridge" or parent.submodule == point.submodule:
        return {}
    return {"submodule": {"before": parent.submodule, "after": point.submodule}}


def _dependencies(parent: Target, point: Target, measurer: Measurer) -> dict[str, Any]:
    changes = dependencies_between(parent, point, measurer.prober.interpreter)
    return {"dependencies": [change.to_json() for change in changes]} if changes else {}


def _signed(size: int | None, grew: bool) -> int | None:
    """A size told of the larger side against the smaller, signed like the step."""
    return size if size is None or grew else -size


def _rank(measured: Measured, rank: int | None) -> RankReading | None:
    ranks: Mapping[int, RankReading] = {reading.rank: reading for reading in measured.reading.ranks}
    return ranks.get(rank) if rank is not None else None
