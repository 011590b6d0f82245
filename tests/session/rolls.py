"""Toy histories with a Megatron-LM submodule: what is rolled, and what each side of a roll would measure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oombisect.session.verdict import Report
from tests.repo.history import GITLINK, History, modules

from .toy import MIB, mib
from .world import World

_BRIDGE, _CORE = "src/megatron/bridge", "megatron/core"


class Rolls:
    """A Bridge and a Megatron-LM below `folder`; ids are kept by subject."""

    def __init__(self, folder: Path) -> None:
        self.bridge, self.megatron = History(folder / "Megatron-Bridge"), History(folder / "Megatron-LM")
        self.ids: dict[str, str] = {}

    def core(
        self,
        subject: str,
        added: int = 0,
        *,
        cached: int = 0,
        api: int | None = None,
        together: bool = False,
        **where: Any,
    ) -> str:
        """A commit of Megatron-LM that adds MiB; its own file each, so that it reverts cleanly."""
        told: dict[str, Any] = {f"added-{subject}": added * MIB}
        told |= {f"cached-{subject}": cached * MIB} if cached else {}
        told |= {"api": api} if api is not None else {}
        told |= {"together": True} if together else {}
        sha = self.megatron.commit(subject, _files(f"{_CORE}/memory", told), **where)
        self.ids[subject] = sha
        return sha

    def commit(self, subject: str, *, pin: str | None = None, **told: Any) -> str:
        """A commit of Bridge: what it changes of `memory`, and where it moves the submodule.

        What neither changes memory nor rolls is a change that a probe sees all the same.
        """
        files = _files(f"{_BRIDGE}/memory", told or ({} if pin else {f"tag-{subject}": subject}))
        if not self.bridge.tip():
            recipe = "def toy_1b_pretrain_config() -> 'ConfigContainer':\n    ...\n"
            files |= {".gitmodules": modules("../Megatron-LM"), f"{_BRIDGE}/recipes/toy/toy.py": recipe}
        self.ids[subject] = self.bridge.commit(subject, files, gitlinks={GITLINK: self.ids[pin]} if pin else None)
        return self.ids[subject]

    def start(self, **told: Any) -> None:
        """The first commit of either: Bridge takes 8000 MiB and works with api 1."""
        self.core("m0", api=1)
        self.commit("b0", pin="m0", **{**mib(8000), "apis": [1], **told})

    def name(self, sha: str | None) -> str | None:
        """The subject of a commit."""
        return next((subject for subject, known in self.ids.items() if known == sha), None)


def run(world: World, rolls: Rolls, **options: Any) -> Report:
    """Bisect all of Bridge's history."""
    bridge = rolls.bridge.git("rev-list", "--reverse", "main").split()
    world.repo, world.shas = rolls.bridge.path, [bridge[0], bridge[-1]]
    return world.run([], **options)


def _files(folder: str, told: Mapping[str, Any]) -> dict[str, str | None]:
    return {f"{folder}/{name}": json.dumps(value) + "\n" for name, value in told.items()}
