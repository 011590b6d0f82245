"""What the demo's regressions are, found out with PyTorch's allocator at chosen capacities, without the classifier."""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from oombisect.demo.repository import DemoRepository
from oombisect.demo.truth import Truth
from oombisect.virtual_gpu.build import prepare
from oombisect.virtual_gpu.profiles import parse_gpu
from tests.demo.layout import lay_out

pytestmark = [
    pytest.mark.virtual_gpu,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch"),
]
GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True)
class Run:
    fits: bool
    allocated: int
    reserved: int


class Trainer:
    """Trains commits of the demo on its device."""

    def __init__(self, demo: DemoRepository, folder: Path, cache: Path) -> None:
        self.demo, self.folder = demo, folder
        self.profile = parse_gpu(demo.device)
        gpu = prepare(Path(sys.executable), cache)
        self.environment = {**os.environ, **gpu.environment(self.profile)}

    def __call__(self, *runs: tuple[str, int | None, bool]) -> list[Run]:
        """Each run is (revision, bytes of the device or None for no limit, expandable segments)."""
        jobs = []
        for revision, limit, expandable in runs:
            root = self.folder / revision.replace("^", "-parent")
            if not root.exists():
                lay_out(self.demo, revision, root)
            jobs.append({"root": str(root), "limit": limit, "expandable": expandable})
        command = [sys.executable, str(Path(__file__).with_name("train_at.py"))]
        done = subprocess.run(
            command, input=json.dumps(jobs), env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return [Run(**result) for result in json.loads(done.stdout.splitlines()[-1])]


@pytest.fixture(scope="module")
def train(demo: DemoRepository, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return Trainer(demo, tmp_path_factory.mktemp("laid-out"), tmp_path_factory.mktemp("virtual-gpu"))


def test_fragmentation(train: Trainer, facts: Truth) -> None:
    before, after = f"{facts.fragmentation}^", facts.fragmentation
    device, context = train.profile.total_bytes, train.profile.context_bytes
    free_before, free_after = train((before, None, False), (after, None, False))
    assert free_after.allocated == free_before.allocated, "not a byte more is allocated at the peak"
    assert free_after.allocated + context < device - 2 * GIB, "a perfect allocator would have room to spare"
    tight = free_after.allocated + context + 512 * MIB
    runs = [
        ((before, device - GIB, False), True),  # what the parent needs at most ...
        ((after, device, False), False),  # ... and the commit at least: a GiB more
        ((before, tight, True), True),  # with expandable segments neither needs much above its peak
        ((after, tight, True), True),
    ]
    results = train(*(run for run, _ in runs))
    assert [result.fits for result in results] == [fits for _, fits in runs]


def test_capacity(train: Trainer, facts: Truth) -> None:
    before, after = f"{facts.capacity}^", facts.capacity
    device, context = train.profile.total_bytes, train.profile.context_bytes
    free_before, free_after = train((before, None, False), (after, None, False))
    assert free_after.allocated - free_before.allocated > 4 * GIB
    assert free_before.allocated + context < device < free_after.allocated + context
    stranded_before, stranded_after = (run.reserved - run.allocated for run in (free_before, free_after))
    assert stranded_after <= stranded_before
    fits_before, fits_after = train((before, device, True), (after, device, True))
    assert (fits_before.fits, fits_after.fits) == (True, False), "expandable segments do not help any more"


def test_ends_and_the_change_that_was_taken_back(train: Trainer, demo: DemoRepository, facts: Truth) -> None:
    device, context = train.profile.total_bytes, train.profile.context_bytes
    runs = train(
        (demo.good, None, False),
        (facts.reverted, None, False),
        (facts.reverted, device, False),
        (facts.revert, None, False),
        (facts.merge, None, False),
        (f"{facts.fragmentation}^", None, False),
        (demo.bad, device, False),
    )
    good, reverted, reverted_at_limit, revert, merge, last_good, bad = runs
    assert good.reserved + context <= device, "the good end fits without any doubt"
    assert GIB <= reverted.allocated - good.allocated < 1.1 * GIB
    assert reverted_at_limit.fits, "it was taken back for its size, not because it did not fit"
    assert good == revert == merge == last_good, "nothing else of that time changed memory, the roll included"
    assert not bad.fits
