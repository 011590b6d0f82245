"""A toy session with everything a report can show, and hostile text wherever text can come from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oombisect.cli.sessions_of import clock
from oombisect.history.store import open_store
from oombisect.reports.report_document import SessionDocument
from oombisect.reports.report_gathering import Sources, gather
from oombisect.session.verdict import Report
from tests.session import toy
from tests.session.recording import Recording, record
from tests.session.toy import MIB, mib
from tests.session.world import World

LIMIT = 7000 * MIB
ATTACK = "<script>window.pwned=1</script><img src=x onerror=window.pwned=2>"
SUBJECT = f"{ATTACK} </script><!-- & \"q\" 'a' @octocat #7 gh-7 `x` | %{{y}} <a href=https://evil.example>b</a>"
VALUE = f"</script>{ATTACK}<!-- @octocat | ```"
REASON = f"ImportError: {ATTACK} @octocat"
FRAME = "<img src=x onerror=window.pwned=3>\u2028\u202e@octocat"


@dataclass(frozen=True)
class Reported:
    """A finished session, where it lies, and its document."""

    world: World
    report: Report
    document: SessionDocument
    database: Path


def program(grown: bool) -> Iterator[tuple[str, str, int]]:
    """Three steps of a training: 3,000 MiB stay, 2,000 come and go; grown, 3,000 more of it are kept."""
    for number in range(3):
        yield "alloc", f"weights{number}", 1000 * MIB
    for step in range(3):
        for number in range(20):
            yield "alloc", f"activations{step:02}{number:02}", 100 * MIB
        if grown and not step:
            yield "alloc", FRAME, 3000 * MIB
        for number in range(20):
            yield "free", f"activations{step:02}{number:02}", 0


def told(recording: Recording, **more: Any) -> dict[str, Any]:
    return recording.told(external=500 * MIB, **more)


def run_session(folder: Path) -> tuple[World, Report]:
    """Seven commits: the middle one cannot be probed, the fifth brings the growth."""
    world = World(folder)
    small, large = (record(folder / f"{name}.gz", program(name == "large")) for name in ("small", "large"))
    memories = [
        told(small, config={"a": 1, "name": "plain"}),
        None,
        told(small, config={"a": 1, "name": VALUE}),
        mib(1, unresolved=REASON),
        told(small, config={"a": 1, "name": VALUE}, tag=4),
        told(large, config={"a": 1, "name": VALUE}, tag=5),
        told(large, config={"a": 1, "name": VALUE}, tag=6),
    ]
    world.shas = toy.history(world.repo, memories, dict.fromkeys((3, 5), SUBJECT))
    return world, world.run(memories, probe={"limit_bytes": LIMIT})


def document_of(world: World, session: str) -> SessionDocument:
    path = world.folder / "db.sqlite"
    with open_store(path, clock=clock, readonly=True) as store:
        return gather(store.session(session), Sources(store, path, world.folder / "cache", clock, lambda _: None))
