"""What a search costs and how often it names the right commit, beside a plain boolean bisection.

Histories are drawn at random from a seed, so the tables of docs/search.md can be printed again:

    python benchmarks/search_cost.py [--histories 50] [--seed 1]
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from itertools import accumulate, product

from oombisect.search import (
    Conclusion,
    Conflict,
    Exact,
    Measure,
    Metrics,
    Observation,
    Options,
    Request,
    Revert,
    State,
    Unresolved,
    conclude,
    observe,
    plan,
    start,
)

GIB = 1 << 30
MIB = 1 << 20
BASE = 40 * GIB


class History:
    """Peak allocated by commit, bytes, and the limit."""

    def __init__(self, changes: Sequence[int], limit: int, broken: Iterable[int] = ()) -> None:
        self.changes = changes
        self.peaks = list(accumulate(changes, initial=BASE))
        self.limit = limit
        self.broken = frozenset(broken)

    @classmethod
    def drawn(cls, rng: random.Random, count: int, steps: int, falls: float = 0.0) -> History:
        """`steps` changes of 0.5 to 8 GiB at random commits, a share of them down; it grows and crosses a limit."""
        while True:
            changes = [0] * (count - 1)
            for at in rng.sample(range(count - 1), steps):
                changes[at] = rng.randrange(GIB // 2, 8 * GIB) * (-1 if rng.random() < falls else 1)
            growth = sum(changes)
            if growth > GIB // 2:
                return cls(changes, BASE + rng.randrange(growth))

    @property
    def largest(self) -> int:
        """The commit that added most."""
        return max(range(len(self.changes)), key=lambda i: self.changes[i]) + 1

    def answer(self, request: Request) -> Observation:
        if request.index in self.broken:
            return Unresolved("does not build")
        peak = self.peaks[request.index]
        if isinstance(request, Revert):
            peak = self.peaks[-1] - self.changes[request.index - 1]
            if peak < 0:
                return Conflict("does not revert")
        return Exact(Metrics(peak, peak), peak <= self.limit)


def boolean_bisection(history: History) -> tuple[int, int]:
    """The commit that `git bisect` would name, and its probes, the two ends included."""
    low, high, probes = 0, len(history.peaks) - 1, 2
    while high - low > 1:
        middle, probes = (low + high) // 2, probes + 1
        if history.peaks[middle] <= history.limit:
            low = middle
        else:
            high = middle
    return high, probes


def search(history: History, options: Options, parallel: int = 1, **axis: object) -> tuple[State, Conclusion, int]:
    """A search to its end: state, conclusion, and rounds, the two ends counted as one."""
    state, rounds = start(len(history.peaks), options, **axis), 0  # type: ignore[arg-type]
    while requests := plan(state, parallel if rounds else max(2, parallel)):
        rounds += 1
        for request in requests:
            state = observe(state, request, history.answer(request))
    return state, conclude(state), rounds


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a Markdown table."""
    print(f"\n### {title}\n")
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row) + " |")


def mean(values: Iterable[int]) -> float:
    return statistics.fmean(values)


def percent(hits: Sequence[bool]) -> str:
    return f"{100 * sum(hits) / len(hits):.0f} %"


COUNTS = (256, 512, 2048)
STEPS = (1, 2, 3, 5, 8)
BLIND = 40  # histories of a boolean bisection for each of a search: it is quick, and a share wants many


def halvings(count: int, steps: int) -> float:
    """The exact mean of probes that halving takes for `steps` changes, at random among `count` points.

    An interval is halved if it holds a step, so this is the sum of the chances of that over the whole tree.
    """
    changes = count - 1
    widths, tree = [changes], []
    while widths:
        widths = [width for width in widths if width > 1]
        tree += widths
        widths = [half for width in widths for half in (width // 2, width - width // 2)]
    return 2 + sum(1 - math.comb(changes - width, steps) / math.comb(changes, steps) for width in tree)


def blind(histories: Sequence[History]) -> tuple[float, str]:
    """A boolean bisection of each: mean probes, and how often it names the largest change."""
    plain = [boolean_bisection(history) for history in histories]
    hits = [commit == history.largest for (commit, _), history in zip(plain, histories, strict=True)]
    return mean(probes for _, probes in plain), percent(hits)


def seeing(histories: Sequence[History], options: Options) -> tuple[float, float, str]:
    """A search of each: mean probes to find, with confirmation, and how often it names the largest change."""
    runs = [search(history, options) for history in histories]
    hits = [top(found) == history.largest for (_, found, _), history in zip(runs, histories, strict=True)]
    found = mean(sum(isinstance(request, Measure) for request, _ in state.log) for state, _, _ in runs)
    return found, mean(state.probes for state, _, _ in runs), percent(hits)


def all_found(seed: int, times: int) -> None:
    rows = []
    for count, steps in product(COUNTS, STEPS):
        rng = random.Random(seed)
        histories = [History.drawn(rng, count, steps) for _ in range(BLIND * times)]
        found, confirmed, hits = seeing(histories[:times], Options(exhaustive=True))
        rows.append((count, steps, *blind(histories), found, halvings(count, steps), confirmed, hits))
    table(
        "K steps of 0.5 to 8 GiB, all up, a limit anywhere between the ends",
        (
            "commits",
            "K",
            "boolean: probes",
            "names the largest",
            "oombisect: probes to find all K",
            "mean of perfect halving",
            "with confirmation",
            "names the largest",
        ),
        rows,
    )


def by_default(seed: int, times: int, falls: float) -> None:
    rows = []
    for steps in STEPS:
        rng = random.Random(seed)
        histories = [History.drawn(rng, 256, steps, falls if steps > 1 else 0) for _ in range(BLIND * times)]
        searches = [seeing(histories[:times], options) for options in (Options(), Options(exhaustive=True))]
        rows.append((steps, *blind(histories), *searches[0], *searches[1]))
    ours = ("probes", "with confirmation", "names the largest")
    table(
        f"256 commits, {f'{falls:.0%} of the steps down' if falls else 'all steps up'}, where it stops by default",
        (
            "K",
            "boolean: probes",
            "names the largest",
            *(f"default: {head}" for head in ours),
            *(f"exhaustive: {head}" for head in ours),
        ),
        rows,
    )


def top(found: Conclusion) -> int | None:
    """The largest change that is named."""
    named = [step for step in found.steps if step.named]
    return max(named, key=lambda step: step.delta.device).index if named else None


def parallel_rounds(seed: int, times: int) -> None:
    rows = []
    for count in COUNTS:
        rng = random.Random(seed)
        histories = [History.drawn(rng, count, 1) for _ in range(times)]
        for jobs in (1, 2, 4, 8):
            runs = [search(history, Options(confirm=False), jobs) for history in histories]
            rows.append((count, jobs, mean(rounds for *_, rounds in runs), mean(state.probes for state, *_ in runs)))
    table("One step, probes side by side", ("commits", "at once", "rounds", "probes"), rows)


def creep(rng: random.Random, times: int) -> None:
    rows = []
    for count in COUNTS:
        costs, crossed, kinds = [], [], []
        for _ in range(times):
            changes = [rng.randrange(2 * 16 * GIB // count) for _ in range(count - 1)]
            for limit, into in ((1 << 60, costs), (BASE + 8 * GIB, crossed)):
                state, found, _ = search(History(changes, limit), Options(confirm=False))
                into.append(state.probes)
                kinds.append(found.kind == "creep")
        rows.append((count, mean(costs), mean(crossed), percent(kinds)))
    table(
        "Creep: every commit adds a little, 16 GiB in all",
        ("commits", "probes", "with a limit to cross", "called creep"),
        rows,
    )


def broken(rng: random.Random, times: int) -> None:
    rows = []
    for length in (0, 1, 5, 20, 60):
        costs, right, blurred = [], [], []
        for _ in range(times):
            history = History.drawn(rng, 256, 1)
            first = rng.randrange(1, 255 - length)
            history.broken = frozenset(range(first, first + length))
            state, found, _ = search(history, Options(confirm=False))
            hidden = bool({history.largest, history.largest - 1} & history.broken)
            costs.append(state.probes)
            right.append(found.crossing == history.largest if not hidden else found.crossing is None)
            blurred.append(found.kind == "blurred")
        rows.append((length, mean(costs), percent(blurred), percent(right)))
    table(
        "256 commits, one step, a stretch that does not build",
        ("broken", "probes", "blurred", "named right, or not at all where hidden"),
        rows,
    )


def relevance(rng: random.Random, times: int) -> None:
    rows = []
    for share in (1.0, 0.25, 0.05):
        blind, weighted = [], []
        for _ in range(times):
            history = History.drawn(rng, 256, 1)
            weights = [1.0 if rng.random() < share or i == history.largest else 0.0 for i in range(256)]
            blind.append(search(history, Options(confirm=False))[0].probes)
            weighted.append(search(history, Options(confirm=False), weights=weights)[0].probes)
        rows.append((f"{share:.0%}", mean(blind), mean(weighted)))
    table(
        "256 commits, one step in a relevant commit", ("relevant commits", "unweighted", "weighted by relevance"), rows
    )


def planning(rng: random.Random) -> None:
    rows = []
    for count in (1_000, 10_000, 100_000):
        history = History.drawn(rng, count, 5)
        weights = [rng.random() for _ in range(count)]
        begun = time.process_time()
        state, _, _ = search(history, Options(exhaustive=True), weights=weights)
        rows.append((count, state.probes, f"{time.process_time() - begun:.3f} s"))
    table("Processor time of all planning, five steps, exhaustive, weighted", ("commits", "probes", "time"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=50, help="histories for each row (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all histories (default: %(default)s)")
    options = parser.parse_args()
    times = options.histories
    all_found(options.seed, times)
    for falls in (0.0, 0.25):
        by_default(options.seed, times, falls)
    parallel_rounds(options.seed, times)
    rng = random.Random(options.seed)
    creep(rng, max(1, times // 2))
    broken(rng, times)
    relevance(rng, times)
    planning(rng)


if __name__ == "__main__":
    main()
