"""By hand: `python -m tests.memory.oracle.try_seeds PYTHON CACHE FROM TO` runs the programs of a range of seeds.

Each difference is shown with as few operations as still show one. CACHE is where the virtual GPU is built.
"""

from __future__ import annotations

import sys
from pathlib import Path

from oombisect.memory.allocator import rules_for
from oombisect.virtual_gpu.build import prepare

from .compare import compare, minimise
from .oracle import Oracle
from .program import Program, make_program


def main() -> None:
    python, cache, first, last = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    with Oracle(python, prepare(python, cache)) as oracle:
        rules = rules_for(oracle.torch)

        def differs(program: Program) -> bool:
            return compare(program, oracle.ask(program), oracle.names, rules) is not None

        wrong = [
            program
            for program, answer in oracle.ask_all(
                make_program(seed, newer=rules.large_segment_setting) for seed in range(first, last)
            )
            if compare(program, answer, oracle.names, rules)
        ]
        print(f"{oracle.torch}: {len(wrong)} of {last - first} programs differ")
        for program in wrong:
            small = minimise(program, differs)
            answer = oracle.ask(small)
            mismatch = compare(small, answer, oracle.names, rules)
            print(f"seed {small.seed}, {small.settings!r}, {small.capacity} of {small.total} bytes, {mismatch}")
            for at, operation in enumerate(small.operations):
                print(f"  {at} {operation} {[hex(event[0]) for event in answer['events'][at + 1 : at + 2]]}")


if __name__ == "__main__":
    main()
