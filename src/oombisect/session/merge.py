"""Into a merge: a step that is a merge commit is gone into, to the commit of the merged branch that brought it.

The branch is searched from where it left the mainline to its tip, as it was before the merge. Where it adds less there
than what is looked for, no commit of it alone does it: the merge itself does, with what the mainline had meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from oombisect.axes.commits import commit_range
from oombisect.repo.bridge import BridgeRepository
from oombisect.repo.commits import Commit
from oombisect.search.conclusion import Conclusion, Step
from oombisect.search.observation import Infra, Observation, Unresolved
from oombisect.search.options import Options
from oombisect.session.bisection import Bisection, CannotRevert
from oombisect.session.commit_line import CommitLine
from oombisect.session.corners import gain, observed, shows, to_probe
from oombisect.session.measuring import Measurer, Target
from oombisect.session.verdict import StepVerdict, Verdict
from oombisect.units import counted, format_delta

if TYPE_CHECKING:
    from oombisect.history.store import Store

MERGE = "merge"


@dataclass(frozen=True)
class MergeDescent:
    """Goes on into the merges among the steps of one search, `conclusion` over the first-parent `line`.

    `options` are those of that search; what it and other descents left of a budget is spent here.
    """

    store: Store
    session: str
    line: CommitLine
    measurer: Measurer
    options: Options
    limit: int
    conclusion: Conclusion

    def descend(self, verdict: Verdict) -> Verdict:
        """The verdict, with `descent` in the evidence of every named step that is a merge and moves no submodule.

        Raises:
            OombisectError: no probe can be started.
        """
        spent = self.conclusion.probes + sum(_probes(step) for step in verdict.steps)
        room = None if self.options.budget is None else max(0, self.options.budget - spent)
        steps = []
        for step, judged in zip(self.conclusion.steps, verdict.steps, strict=True):
            if judged.named and "descent" not in judged.evidence and self._is_merge(step):
                descent = self._into(step, room)
                room = None if room is None else max(0, room - descent["probes"])
                judged = replace(judged, evidence={**judged.evidence, "descent": descent})
            steps.append(judged)
        return replace(verdict, steps=tuple(steps))

    def _is_merge(self, step: Step) -> bool:
        before, merge = (self.line.axis.commits[index] for index in (step.parent, step.index))
        return len(merge.parents) > 1 and merge.parents[0] == before.sha

    def _into(self, step: Step, room: int | None) -> dict[str, Any]:
        """The descent into one merge, as docs/json.md has it."""
        merge = self.line.axis.commits[step.index]
        mainline, tip, *more = merge.parents
        descent: dict[str, Any] = {"into": MERGE, "branch": {"first": None, "last": tip, "commits": 0}, "probes": 0}
        branch = self.line.axis.repository.log("--reverse", "--first-parent", f"{mainline}..{tip}")
        if more or not branch or not branch[0].parents:
            why = "it merges several branches" if more else "the branch did not begin at the mainline"
            return descent | _told("not-possible", f"the merge is not gone into: {why}")
        descent["branch"] |= {"first": branch[0].sha, "commits": len(branch)}
        self.measurer.watcher.say(
            f"{merge.sha[:10]} merges {counted(len(branch), 'commit')} of a branch: going on into it"
        )
        repository, per_lock = self.line.axis.repository, self.line.axis.per_lock
        axis = commit_range(repository, branch[0].parents[0], tip, per_lock=per_lock)
        line = CommitLine(axis, self.line.make)
        scope, ends = f"{MERGE}:{merge.sha}", (line.targets[0], line.targets[-1])
        descent["probes"] = spent = to_probe(self.store, self.session, self.measurer, scope, ends)
        if room is not None and room < spent:
            return descent | _told("budget", "the probe budget was spent before the branch could be measured")
        seen = []
        for end in ends:
            measured = self.measurer.measure(end, "corner")
            fits = self.measurer.fits(end, measured, self.limit)
            seen.append(observed(self.measurer, measured, fits, self.options))
        for name, one in zip(("where it began", "at its tip"), seen, strict=True):
            if isinstance(one, Unresolved | Infra):
                kind = "infra" if isinstance(one, Infra) else "blurred"
                return descent | _told(kind, f"the branch cannot be probed {name}: {one.reason}")
        alone = gain(seen[0], seen[1], self.options, self.conclusion.min_step)
        if alone is None:
            return descent | _told("blurred", "what the branch added cannot be told: it ran out of memory all along")
        if alone < max(1, min(self.conclusion.min_step, self.options.wanted(step.change))):
            size = f"adds {format_delta(alone)}" if self.options.metric != "step-time" else "adds too little"
            if any(repository.is_ancestor(other, mainline) for one in branch for other in one.parents[1:]):
                why = "with what was merged into it of the mainline: who brought the step cannot be told"
                return descent | _told("blurred", f"the branch {size} {why}")
            return descent | _told("not-needed", f"the branch by itself {size}: the merge itself brought it")
        found, probes = self._walk(line, scope, None if room is None else room - spent)
        descent |= {"probes": spent + probes, **_walked(found)}
        return self._proved(descent, line, step, room)

    def _walk(self, line: CommitLine, scope: str, room: int | None) -> tuple[Verdict, int]:
        options = replace(self.options, budget=room)
        bisection = Bisection(self.store, self.session, line, self.measurer, options, self.limit, scope)
        conclusion = bisection.run()
        return bisection.verdict(conclusion), conclusion.probes

    def _proved(self, descent: dict[str, Any], line: CommitLine, step: Step, room: int | None) -> dict[str, Any]:
        """A commit of the branch keeps its name where the merge brought what it did.

        The merge without it must take less by most of its size, and the mainline must not have had it before: to take
        it back there changes nothing. That tells it from what both made (cherry-picked) or merged (a third branch).
        """
        proof, steps = _Proof(self, line, step), []
        notes, answers = list(descent["notes"]), set[str]()
        for told in descent["steps"]:
            if told["named"]:
                answer, note, probes = proof.of(told["point"], None if room is None else room - descent["probes"])
                descent["probes"] += probes
                answers.add(answer)
                confirmed = told["confirmed"] if answer in (_BROUGHT, _SPENT) else answer
                told = {**told, "named": answer == _BROUGHT, "confirmed": confirmed}
                notes += [f"{told['point'][:10]} {note}"] if note else []
            steps.append(told)
        kind = descent["kind"]
        if kind == "culprit" and not any(told["named"] for told in steps):
            kind = next((kind for answer, kind in _KINDS.items() if answer in answers), "not-needed")
        return descent | {"steps": steps, "notes": notes, "kind": kind}


_BROUGHT, _SPENT = "brought", "spent"
_KINDS = {_SPENT: "budget", "conflict": "blurred", "not-tried": "blurred"}
"""What a descent came to that names nobody, by the answers of `_Proof`; else the merge itself did it."""


@dataclass(frozen=True)
class _Without:
    """A commit reverted somewhere: whether that takes its memory away; if nobody knows, the answer, and why."""

    shows: bool | None
    answer: str = ""
    why: str = ""
    probes: int = 0


@dataclass(frozen=True)
class _Proof:
    """Whether the merge `step` brought what a commit of the branch, a point of `line`, did."""

    descent: MergeDescent
    line: CommitLine
    step: Step

    def of(self, point: str, room: int | None) -> tuple[str, str, int]:
        """The answer, a note, and the probes that were needed.

        `brought`; `superseded`: it did not; `conflict`, `not-tried`: nobody knows; `spent`: for want of a budget.
        """
        index = [target.key for target in self.line.targets].index(point)
        on_merge = self._without(index, self.step.index, room)
        if on_merge.shows is None:
            return on_merge.answer, f"is not proved to be what the merge brought: {on_merge.why}", on_merge.probes
        if not on_merge.shows:
            note = "is not what the merge brought: to revert it there leaves the memory as it is"
            return "superseded", note, on_merge.probes
        before = self._without(index, self.step.parent, None if room is None else room - on_merge.probes)
        probes = on_merge.probes + before.probes
        if before.shows:
            return "superseded", "did for the most part what the mainline had before the merge", probes
        if before.shows is None and (before.answer == _SPENT or self._may_be_there(index)):
            return before.answer, f"is not told from what the mainline had before the merge: {before.why}", probes
        return _BROUGHT, "", probes

    def _may_be_there(self, index: int) -> bool:
        """Whether the mainline changed a file of the commit, after the branch had left it, before the merge."""
        commit, mainline = self.line.axis.commits[index], self._graph.commit(self._merge.parents[0])
        fork = self._graph.merge_base(mainline.sha, commit.parents[0])
        if fork is None:
            return True
        mine, theirs = self._graph.changed((commit, replace(mainline, parents=(fork,))))
        return not {*mine.paths}.isdisjoint(theirs.paths)

    @property
    def _merge(self) -> Commit:
        return self.descent.line.axis.commits[self.step.index]

    @property
    def _graph(self) -> BridgeRepository:
        return self.line.axis.repository

    def _without(self, index: int, at: int, room: int | None) -> _Without:
        """A commit of the branch reverted on a point of the outer line."""
        all_of, outer = self.descent, self.descent.line
        tip = outer.targets[at]
        try:
            without = self.line.reverted_on(tip.key, outer.axis.trees[at], index)
        except CannotRevert as error:
            return _Without(None, "conflict", str(error))
        probes = to_probe(all_of.store, all_of.session, all_of.measurer, f"{MERGE}:{without.key}", (without,))
        if room is not None and probes > room:
            return _Without(None, _SPENT, "the probe budget was spent")
        sides = (self.line.targets[index - 1], self.line.targets[index])
        low, high, bad, left = (self._observed(target) for target in (*sides, tip, without))
        shown = shows((low, high), bad, left, all_of.options)
        if isinstance(left, Unresolved | Infra):
            return _Without(shown, "conflict" if isinstance(left, Unresolved) else "not-tried", left.reason, probes)
        return _Without(shown, "not-tried", "it ran out of memory", probes)

    def _observed(self, target: Target) -> Observation:
        measurer = self.descent.measurer
        measured = measurer.measure(target, "corner")
        return observed(measurer, measured, measurer.fits(target, measured, self.descent.limit), self.descent.options)


def _probes(step: StepVerdict) -> int:
    return int(step.evidence.get("descent", {}).get("probes", 0))


def _told(kind: str, note: str) -> dict[str, Any]:
    """A descent that came to nothing."""
    return {"kind": kind, "steps": [], "notes": [note]}


def _walked(found: Verdict) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "crossing": found.crossing,
        "growth": dict(found.growth),
        "explained": round(found.explained, 4),
        "unresolved": [list(pair) for pair in found.unresolved],
        "skipped": [list(pair) for pair in found.skipped],
        "steps": [step.to_json() for step in found.steps],
        "notes": list(found.notes),
    }
