"""One config for every commit: that of one of them, so that what code adds is told from what a recipe adds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from oombisect.errors import OombisectError
from oombisect.probing.description import NoDescription
from oombisect.session.commit_line import CommitTargets
from oombisect.session.measuring import CannotProbe
from oombisect.session.opening import Workshop

if TYPE_CHECKING:
    from oombisect.history.store import Store

FROZEN = "frozen"


def freeze_config(store: Store, session: str, workshop: Workshop, make: CommitTargets, sha: str) -> None:
    """Have all that `make` makes run with the config of the commit `sha`, whose config is made once in a session.

    Raises:
        OombisectError: that config cannot be made.
    """
    told = next((e.payload for e in store.events(session) if e.kind == FROZEN and e.payload["commit"] == sha), None)
    if told is None:
        repository = workshop.repository
        commit = repository.commit(sha)
        target = make.of(sha, commit.subject, repository.relevant_trees(sha))
        try:
            interpreter = target.interpreter() if target.interpreter else None
            call, sources = target.call(), target.lay_out()
            folder = store.artifacts_dir(session) / FROZEN
            described = workshop.prober.within(interpreter).describe(call, sources, folder)
        except (CannotProbe, NoDescription) as error:
            raise OombisectError(
                f"The config of {sha[:12]} cannot be made: {error}", "Freeze the config of another commit."
            ) from error
        told = {"commit": sha, "config": dict(described.given)}
        store.append_event(session, FROZEN, told)
    make.config = told["config"]
    workshop.prober.workload = replace(workshop.prober.workload, config_of=sha)
