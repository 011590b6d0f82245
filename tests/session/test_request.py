"""A request is refused before anything runs if an option of it cannot be meant."""

from __future__ import annotations

from typing import Any

import pytest

from oombisect.errors import OombisectError
from oombisect.session.request import BisectRequest, ProbeRequest


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        *(({"time_limit": value}, "--time-limit") for value in (0.0, -1.0, float("nan"), float("inf"))),
        *(({"moe_skew": value}, "--moe-skew") for value in (0.0, -1.0, float("nan"), float("inf"))),
        *(({"host_bytes": value}, "--host-memory") for value in (0, 1 << 20, 1 << 63)),
        *(({"limit_bytes": value}, "--limit") for value in (0, -1, 1 << 63)),
        *(({"iterations": value}, "--iterations") for value in (2, 1001)),
        *(({"micro_batches": value}, "--micro-batches") for value in (0, -1, 1 << 21)),
        *(({"world_size": value}, "--world-size") for value in (0, -1, (1 << 20) + 1)),
        *(({"ranks": value}, "--ranks") for value in ((-1,), (0, 1 << 20))),
        ({"ranks": (4,), "world_size": 4}, "--ranks"),
    ],
)
def test_a_probe_option_out_of_range_is_refused_by_name(changes: dict[str, Any], option: str) -> None:
    with pytest.raises(OombisectError, match=option):
        ProbeRequest("toy", **changes)


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        *(({"budget": value}, "--budget") for value in (-1, 0, 1, 1_000_001)),
        *(({"grid": value}, "--grid") for value in (-1, 1_000_001)),
        *(({"min_step_bytes": value}, "--min-step") for value in (0, 1 << 63)),
        ({"find": "luck"}, "--find"),
        *(({"metric": value}, "--metric") for value in ("luck", "step-time")),
        *(({"threshold_bytes": value}, "--threshold") for value in (0, 1 << 63)),
    ],
)
def test_a_search_option_out_of_range_is_refused_by_name(changes: dict[str, Any], option: str) -> None:
    with pytest.raises(OombisectError, match=option):
        BisectRequest("a..b", ProbeRequest("toy"), **changes)


def test_why_a_search_by_time_is_refused_is_said() -> None:
    with pytest.raises(OombisectError, match="step-time") as told:
        BisectRequest("a..b", ProbeRequest("toy"), metric="step-time")
    assert "recording each allocation" in told.value.way_out and "fragmentation" in told.value.way_out


def test_a_request_in_range_survives_json() -> None:
    probe = ProbeRequest("toy", ranks=(0, 7), world_size=8, time_limit=0.5, micro_batches=1, iterations=1000)
    request = BisectRequest("a..b", probe, budget=2, grid=5, min_step_bytes=1, metric="cached", threshold_bytes=7)
    assert BisectRequest.from_json(request.to_json()) == request
