"""Runs of several ranks: the one that does not fit decides, and is called out beside the others."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from oombisect.errors import ExitCode
from oombisect.reports.terminal import render
from oombisect.session.verdict import Report

from .recording import record
from .test_replaying import NEEDED_BAD, NEEDED_GOOD, E, calm, pinned, probe_arguments, run_cli  # noqa: F401
from .toy import MIB, history, mib, ranks
from .world import World

LIMIT = 7000 * MIB


def test_a_small_rank_that_strands_memory_is_called_out_not_the_largest(
    world: World,
    tmp_path: Path,
    calm: None,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = record(tmp_path / "bad.gz", pinned())
    spared = record(tmp_path / "expandable.gz", pinned(), "expandable_segments:True")
    fragmented = bad.told(needed=NEEDED_BAD, expandable=spared.told(needed=NEEDED_GOOD))
    history(world.repo, [ranks(mib(6000, 6100), fragmented, mib(5000, 5100))])
    code, out = run_cli(capsys, monkeypatch, *probe_arguments(world, LIMIT))
    document = json.loads(out)
    assert code == 1
    assert document["classification"]["class"] == "fragmentation"
    assert document["classification"]["rank"] == 1, "rank 0 has more allocated, and fits"
    found = document["rank_findings"]
    assert (found["do_not_fit"], found["least_headroom_rank"], found["limit_bytes"]) == ([1], 0, LIMIT)
    assert [rank["needed_capacity"] for rank in found["ranks"]] == [None, NEEDED_BAD + E, None]
    assert [rank["headroom_bytes"] for rank in found["ranks"]] == [400 * MIB, LIMIT - NEEDED_BAD - E, 1400 * MIB]
    (excess,) = found["excesses"]
    assert (excess["cause"], excess["compared_with"], excess["allocated_bytes"]) == ("fragmentation", 0, -500 * MIB)

    code, out = run_cli(capsys, monkeypatch, *probe_arguments(world, LIMIT)[:-1])
    lines = [line for line in out.splitlines() if "rank 1 alone does not fit" in line]
    assert len(lines) == 1 and "9.96 GiB of 6.84 GiB" in lines[0] and lines[0].endswith("(simulated)")


def test_a_probe_of_one_rank_has_no_findings(
    world: World, calm: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    history(world.repo, [mib(8000)])
    code, out = run_cli(capsys, monkeypatch, *probe_arguments(world, LIMIT))
    assert code == 1 and json.loads(out)["rank_findings"] is None


def test_a_run_says_which_rank_of_its_bad_end_is_too_large(world: World) -> None:
    even, uneven = ranks(mib(6000), mib(6000)), ranks(mib(6000), mib(9000))
    report = world.run(
        [even, {**even, "tag": 1}, {**uneven, "tag": 1}, {**uneven, "tag": 2}], probe={"limit_bytes": LIMIT}
    )
    assert report.exit_code is ExitCode.CULPRIT
    (step,) = report.verdict.steps
    assert (step.point, step.kind, step.delta["allocated"]) == (world.shas[2], "capacity", 3000 * MIB)
    out = io.StringIO()
    render(report, Console(file=out, width=140, highlight=False))
    text = out.getvalue()
    assert text.count("alone does not fit") == 1
    assert re.search(r"rank 1 against rank 0: \+2\.93 GiB asked for at the peak, .*: imbalance \(simulated\)", text)
    assert "peak allocated is uneven: 8.79 GiB on rank 1, 5.86 GiB on rank 0 (simulated)" in text
    told = report.to_json()
    assert told["rank_findings"]["bad"]["do_not_fit"] == [1] and told["rank_findings"]["good"]["do_not_fit"] == []
    assert json.loads(json.dumps(told)) == told == Report.from_json(told).to_json()


def test_the_ranks_of_an_end_that_does_not_fit_have_their_needs(world: World, tmp_path: Path) -> None:
    bad = record(tmp_path / "bad.gz", pinned())
    spared = record(tmp_path / "expandable.gz", pinned(), "expandable_segments:True")
    fragmented = bad.told(needed=NEEDED_BAD, expandable=spared.told(needed=NEEDED_GOOD))
    report = world.run(
        [ranks(mib(6000, 6100), mib(5000, 5100)), ranks(mib(6000, 6100), fragmented)], probe={"limit_bytes": LIMIT}
    )
    found = report.rank_findings["bad"]
    assert found is not None and found["do_not_fit"] == [1]
    assert [rank["needed_capacity"] for rank in found["ranks"]] == [None, NEEDED_BAD + E]
    assert found["excesses"][0]["cause"] == "fragmentation"
