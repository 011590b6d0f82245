"""What finding the keys of a config diff costs: `python benchmarks/config_cost.py` prints the tables of docs/config.md.

Random diffs whose truth is known: K of N keys add 0.5 to 8 GiB, the rest nothing. Simulated, no probe runs.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from tests.axes.config_world import GIB, MIB, ConfigWorld

from oombisect.search import Options

ROUNDS = 100


def world(chance: random.Random, keys: int, culprits: int, rejecting: int, interacting: int) -> ConfigWorld:
    """A diff of `keys` keys, `rejecting` pairs of which go together only, `interacting` pairs of culprits add more."""
    order = chance.sample(range(keys), keys)
    adds = {i: chance.randint(512, 8192) * MIB for i in order[:culprits]}
    pairs = [(order[0], order[1])] * interacting
    needs = [(chance.randrange(keys), chance.randrange(keys)) for _ in range(rejecting)]
    limit = 40 * GIB + chance.randint(0, sum(adds.values()))
    return ConfigWorld(
        keys, adds, {pair: chance.randint(512, 4096) * MIB for pair in pairs}, [p for p in needs if p[0] != p[1]], limit
    )


def row(keys: int, culprits: int, rejecting: int = 0, interacting: int = 0) -> str:
    """Means over random diffs, seed 1."""
    chance = random.Random(1)
    costs = defaultdict[str, list[int]](list)
    found = 0
    for _ in range(ROUNDS):
        one = world(chance, keys, culprits, rejecting, interacting)
        chain, state, conclusion = one.search(Options(min_step_bytes=64 * MIB))
        costs["search"].append(one.counts["Measure"])
        costs["confirm"].append(one.counts["Remeasure"] + one.counts["Revert"])
        costs["rejected"].append(len(one.rejected))
        before = len(one.asked)
        effects = one.effects(chain, state, conclusion)
        costs["bad side"].append(len(one.asked) - before)
        found += frozenset().union(*(name.split("+") for name in effects.names)) >= one.culprits
    figures = [f"{mean(costs[name]):.1f}" for name in ("search", "rejected", "confirm", "bad side")]
    return "| " + " | ".join([str(keys), str(culprits), *figures, f"{100 * found // ROUNDS} %"]) + " |"


def table(title: str, **world: int) -> None:
    """One table of the documentation."""
    print(f"\n### {title}\n")
    print("| keys | culprits | search: probes | of them rejected | to confirm | bad side | all culprits found |")
    print("|---|---|---|---|---|---|---|")
    for keys in (8, 16, 32):
        for culprits in (1, 2, 3, 5):
            if culprits > 1 or not world.get("interacting"):
                print(row(keys, culprits, **world), flush=True)


if __name__ == "__main__":
    table("Keys that add memory independently")
    table("Two of them add more together", interacting=1)
    table("Two pairs of keys that are rejected apart", rejecting=2)
