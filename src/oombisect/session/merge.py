"""Into a merge: a step that is a merge commit is gone into, to the commit of the merged branch that brought it.

The branch is searched from where it left the mainline to its tip, as it was before the merge. Where it adds less there
than what is looked for, no commit of it alone does it: the merge itself does, with what the mainline had meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from oombisect.axes.commits import CommitRange, commit_range
from oombisect.repo.commits import Commit
from oombisect.search.conclusion import Conclusion, Step
from oombisect.search.observation import Infra, Unresolved
from oombisect.search.options import Options
from oombisect.session.bisection import Bisection
from oombisect.session.commit_line import CommitLine
from oombisect.session.corners import gain, observed, to_probe
from oombisect.session.measuring import Measurer
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
            return descent | _told("not-needed", f"the branch by itself {size}: the merge itself brought it")
        found, probes = self._walk(line, scope, None if room is None else room - spent)
        descent |= {"probes": spent + probes, **_walked(found)}
        return self._without_mainline(descent, axis, merge)

    def _walk(self, line: CommitLine, scope: str, room: int | None) -> tuple[Verdict, int]:
        options = replace(self.options, budget=room)
        bisection = Bisection(self.store, self.session, line, self.measurer, options, self.limit, scope)
        conclusion = bisection.run()
        return bisection.verdict(conclusion), conclusion.probes

    def _without_mainline(self, descent: dict[str, Any], axis: CommitRange, merge: Commit) -> dict[str, Any]:
        """What the mainline had before the merge names nobody: merged into the branch, or made on both (cherry-picked),
        so that the merge moved no file that the commit changed.
        """
        found = {step["point"] for step in descent["steps"]}
        commits = [commit for commit in axis.commits if commit.sha in found]
        brought, *changed = self.line.axis.repository.changed((merge, *commits))
        why = {
            commit.sha: told
            for commit, mine in zip(commits, changed, strict=True)
            if (told := self._was_there(commit, set(mine.paths), set(brought.paths), merge.parents[0]))
        }
        steps = [step | {"named": step["named"] and step["point"] not in why} for step in descent["steps"]]
        notes = [f"{step['point'][:10]} {why[step['point']]}" for step in steps if step["point"] in why]
        named = any(step["named"] for step in steps)
        kind = "not-needed" if descent["kind"] == "culprit" and not named else descent["kind"]
        return descent | {"steps": steps, "notes": [*descent["notes"], *notes], "kind": kind}

    def _was_there(self, commit: Commit, changed: Set[str], brought: Set[str], mainline: str) -> str | None:
        """How the mainline had before the merge what a commit of the branch did; None if it had not."""
        graph = self.line.axis.repository
        if any(graph.is_ancestor(parent, mainline) for parent in _merged(commit)):
            return "merges the mainline into the branch: what it brought was there already"
        if not changed & brought:
            return "changed nothing that the merge brought: the mainline had before the merge what it did"
        return None


def _merged(commit: Commit) -> Sequence[str]:
    return commit.parents[1:]


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
        "steps": [step.to_json() for step in found.steps],
        "notes": list(found.notes),
    }
