"""What a user calls a snapshot, and what is said when there is none."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from oombisect.errors import OombisectError
from oombisect.history.store import Store, open_store
from oombisect.readings import Outcome, PhaseMetrics, RankReading, Reading
from oombisect.session.snapshots_of import resolve_snapshot
from tests.session.memories import DEVICE, add_probe, probe_spec, session_spec, write_snapshot

POINT = "c" * 40


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "o.db", clock=lambda: datetime(2026, 11, 30, tzinfo=UTC)) as opened:
        opened.create_session(session_spec(tmp_path, POINT, POINT))
        yield opened


@pytest.fixture
def probe(store: Store) -> int:
    return add_probe(store, "20261130-1", POINT, [(512, ())], rank=3)


def test_a_probe_by_number_by_session_and_by_its_file(store: Store, probe: int) -> None:
    path = store.snapshot(probe, 3)
    assert path is not None
    for text in (str(probe), f"20261130-1/{probe}", f"2026/{probe}", f"last/{probe}", str(path)):
        found = resolve_snapshot(text, store)
        assert (found.path.resolve(), found.rank, found.point) == (path.resolve(), 3, POINT)
        assert found.rank_reading is not None and found.rank_reading.peak_allocated == 512


def test_a_bare_file(store: Store, tmp_path: Path) -> None:
    path = write_snapshot(tmp_path / "snapshot-7.pickle.gz", [(512, ())])
    for opened in (store, None):
        found = resolve_snapshot(str(path), opened)
        assert (found.path, found.rank, found.probe, found.reading) == (path, 7, None, None)


def test_the_rank_with_the_largest_peak_is_meant_unless_one_is_named(store: Store, tmp_path: Path) -> None:
    number = add_probe(store, "20261130-1", POINT, [(512, ())], rank=0)
    folder = store.artifacts_dir("20261130-1", number)
    assert resolve_snapshot(str(folder / "snapshot-0.pickle.gz"), store).rank == 0
    with pytest.raises(OombisectError, match="measured no rank 1") as refused:
        resolve_snapshot(str(number), store, rank=1)
    assert "measured 0" in refused.value.way_out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("77", "no probe 77"),
        ("20261130-1/77", "no probe 77"),
        ("nowhere/1", "no session 'nowhere'"),
        ("nowhere.pickle", "neither a snapshot file nor a probe"),
        (".", "is a directory, not a snapshot file"),
        ("./1", "neither a snapshot file nor a probe"),
        ("", "neither a snapshot file nor a probe"),
        ("٣", "neither a snapshot file nor a probe"),
    ],
)
def test_what_is_not_there(store: Store, probe: int, text: str, words: str) -> None:
    with pytest.raises(OombisectError, match=words) as refused:
        resolve_snapshot(text, store)
    assert refused.value.exit_code == 2


def test_a_probe_of_another_session(store: Store, probe: int, tmp_path: Path) -> None:
    store.create_session(session_spec(tmp_path, POINT, POINT))
    with pytest.raises(OombisectError, match="has no probe") as refused:
        resolve_snapshot(f"20261130-2/{probe}", store)
    assert f"20261130-1/{probe}" in refused.value.way_out


def test_without_a_database_only_files_can_be_named() -> None:
    with pytest.raises(OombisectError, match="no database"):
        resolve_snapshot("1", None)


def test_a_snapshot_that_was_removed(store: Store, probe: int) -> None:
    path = store.snapshot(probe, 3)
    assert path is not None
    path.unlink()
    with pytest.raises(OombisectError, match="is gone") as refused:
        resolve_snapshot(str(probe), store)
    assert "oombisect probe" in refused.value.way_out


def test_a_snapshot_of_a_release_that_was_removed(store: Store, tmp_path: Path) -> None:
    command = ("/usr/bin/oombisect", "releases", "torch", "2.9..3.0")
    spec = session_spec(tmp_path, "torch 2.9", "torch 3.0", kind="releases", command=command, arguments={"at": POINT})
    probe = add_probe(store, store.create_session(spec).id, "3.0", [(512, ())])
    path = store.snapshot(probe, 0)
    assert path is not None
    path.unlink()
    with pytest.raises(OombisectError, match="is gone") as refused:
        resolve_snapshot(str(probe), store)
    assert refused.value.way_out.endswith(": oombisect releases torch 2.9..3.0 --db FILE")


def test_probes_without_memory(store: Store) -> None:
    begun = store.begin_probe(probe_spec("20261130-1", POINT))
    with pytest.raises(OombisectError, match="did not finish"):
        resolve_snapshot(str(begun), store)
    store.finish_probe(begun, Reading(Outcome.UNRESOLVED, "no module named x", device=DEVICE, simulated=True))
    with pytest.raises(OombisectError, match="measured no rank; it is unresolved: no module named x"):
        resolve_snapshot(str(begun), store)
    kept_none = store.begin_probe(probe_spec("20261130-1", POINT))
    ranks = (RankReading(0, {"step_1": PhaseMetrics(allocated_peak=1)}),)
    store.finish_probe(kept_none, Reading(Outcome.EXACT, device=DEVICE, simulated=True, ranks=ranks))
    with pytest.raises(OombisectError, match="kept no snapshot of rank 0"):
        resolve_snapshot(str(kept_none), store)


def test_a_file_of_another_rank(store: Store, probe: int) -> None:
    with pytest.raises(OombisectError, match="of rank 3, not of rank 0"):
        resolve_snapshot(str(store.snapshot(probe, 3)), store, rank=0)
