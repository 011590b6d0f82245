"""How often `oombisect history` finds steps that are there, and shows steps that are not: simulated series.

Of every kind of series many are made, with known truth. A step is found if one of its sign is shown where it is; with
noise two readings beside it count as well, for nothing can tell them apart. All else that is shown is false.

Run: `python benchmarks/history_fit.py [--series 200] [--seed 1]` (about 5 minutes)
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from oombisect.history.fit import Fit, Sample, fit
from oombisect.units import GIB, MIB

LEVEL = 60 * GIB


@dataclass(frozen=True)
class Made:
    """A series, the indices and sizes of its steps, and whether it creeps."""

    values: list[int | None]
    steps: dict[int, int]
    small: frozenset[int] = frozenset()  # changes that may be told as steps, or as creep


def flat(rng: random.Random, count: int) -> Made:
    return Made([LEVEL] * count, {})


def steps(rng: random.Random, count: int, size: float = 0.05, many: int = 2) -> Made:
    """Steps of a share of the level, up or down, at least four readings apart."""
    places = sorted(rng.sample(range(1, count // 4), min(many, count // 4 - 1)))
    sizes = {4 * place: int(rng.choice((-1, 1)) * size * LEVEL) for place in places}
    level, values = LEVEL, []
    for n in range(count):
        level += sizes.get(n, 0)
        values.append(level)
    return Made(values, sizes)


def ramp(rng: random.Random, count: int, total: float = 0.1) -> Made:
    return Made([LEVEL + int(LEVEL * total * n / count) for n in range(count)], {})


def staircase(rng: random.Random, count: int) -> Made:
    """Creep as it is: a third of the commits each add a little, 10 % altogether."""
    adding = [n for n in range(1, count) if rng.random() < 1 / 3]
    level, values = LEVEL, []
    for n in range(count):
        level += int(rng.uniform(0.5, 1.5) * LEVEL * 0.1 / max(len(adding), 1)) if n in adding else 0
        values.append(level)
    return Made(values, {}, frozenset(adding))


def ramp_and_step(rng: random.Random, count: int) -> Made:
    made, at = ramp(rng, count), rng.randrange(count // 4, 3 * count // 4)
    size = LEVEL // 10
    return Made([(v or 0) + (size if n >= at else 0) for n, v in enumerate(made.values)], {at: size})


def spike(rng: random.Random, count: int, size: float = 0.1) -> Made:
    """One reading off, both ways a step."""
    at, high = rng.randrange(4, count - 4), int(LEVEL * size)
    return Made([LEVEL + (high if n == at else 0) for n in range(count)], {at: high, at + 1: -high})


def gaps(rng: random.Random, count: int) -> Made:
    """Steps, and a third of the points unresolved; a step counts where the next reading is."""
    made = steps(rng, count)
    values = [None if rng.random() < 1 / 3 and 0 < n < count - 1 else v for n, v in enumerate(made.values)]
    moved: dict[int, int] = {}
    for at, size in made.steps.items():
        seen = next(n for n in range(at, count) if values[n] is not None)
        moved[seen] = moved.get(seen, 0) + size
    return Made(values, {at: size for at, size in moved.items() if size})


def none(rng: random.Random) -> float:
    return 0.0


def gauss(sigma: float) -> Callable[[random.Random], float]:
    return lambda rng: rng.gauss(0, sigma)


def uniform(most: float) -> Callable[[random.Random], float]:
    return lambda rng: rng.uniform(-most, most)


def goldens(rng: random.Random) -> float:
    """As refreshes of Megatron-LM's goldens differ: 65 % not at all, 85 % by under 0.1 %, 97 % by under 2 %."""
    share = rng.random()
    most = 0.0 if share < 0.65 else 0.001 if share < 0.85 else 0.02
    return rng.uniform(-most, most)


KINDS: dict[str, Callable[[random.Random, int], Made]] = {
    "level": flat,
    "2 steps of 5 %": steps,
    "2 steps of 2 %": lambda rng, count: steps(rng, count, 0.02),
    "4 steps of 10 %": lambda rng, count: steps(rng, count, 0.1, 4),
    "2 steps of 5 %, gaps": gaps,
    "spike of 10 %": spike,
    "ramp of 2 %": lambda rng, count: ramp(rng, count, 0.02),
    "ramp of 10 %": ramp,
    "ramp of 50 %": lambda rng, count: ramp(rng, count, 0.5),
    "many small changes, 10 %": staircase,
    "ramp and a step of 10 %": ramp_and_step,
}
NOISE: dict[str, Callable[[random.Random], float]] = {
    "none": none,
    "goldens": goldens,
    "0.1 %": gauss(0.001),
    "0.5 %": gauss(0.005),
    "1 %": gauss(0.01),
    "2 %": gauss(0.02),
    "+-2 %": uniform(0.02),
}


def judge(made: Made, found: Fit, slack: int) -> tuple[int, int]:
    """How many steps were found, and how many are false."""
    left = dict(made.steps)
    false = 0
    for step in found.steps:
        at = int(step.point)
        near = [n for n, size in left.items() if abs(n - at) <= slack and size * step.delta_bytes > 0]
        if near:
            del left[min(near, key=lambda n: abs(n - at))]
        elif not any(abs(n - at) <= slack for n in made.small):
            false += 1
    return len(made.steps) - len(left), false


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(f"{arguments.series} series of each kind; found: share of the true steps; false: steps shown in 100 series;")
    print("creep: share of the series in which creep is shown. Noise is one standard deviation, of the level.")
    for count in (12, 40, 120):
        print(f"\n{count} readings\n\n| series | noise | found | false | creep |\n|---|---|---|---|---|")
        for kind, make in KINDS.items():
            for noise, draw in NOISE.items():
                rng = random.Random(f"{arguments.seed} {kind} {noise} {count}")
                there = right = wrong = creeping = 0
                for _ in range(arguments.series):
                    made = make(rng, count)
                    values = [None if v is None else int(v * (1 + draw(rng))) for v in made.values]
                    samples = [Sample(str(n), n, value) for n, value in enumerate(values)]
                    found = fit(samples, exact=noise == "none")
                    ok, false = judge(made, found, 0 if noise == "none" else 2)
                    there, right, wrong = there + len(made.steps), right + ok, wrong + false
                    creeping += bool(found.creeps)
                share = f"{100 * right / there:.0f} %" if there else ""
                false_in_100 = 100 * wrong / arguments.series
                creep = f"{100 * creeping / arguments.series:.0f} %"
                print(f"| {kind} | {noise} | {share} | {false_in_100:.1f} | {creep} |", flush=True)


if __name__ == "__main__":
    assert MIB < LEVEL
    main()
