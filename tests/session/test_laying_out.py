"""What cannot be laid out says what would help."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oombisect.repo.submodule import MissingCommit
from oombisect.session.command_targets import CommandTargets
from oombisect.session.commit_line import CommitTargets
from oombisect.session.measuring import CannotProbe


def nowhere(*_: object) -> None:
    raise MissingCommit("a" * 40, "https://example.org/x.git", "not our ref")


def test_a_pinned_commit_that_is_nowhere_names_the_option_that_helps(tmp_path: Path) -> None:
    project: Any = SimpleNamespace(materialise=nowhere)
    hotfixes: Any = SimpleNamespace(on=lambda sha: sha)
    slot: Any = SimpleNamespace(path=tmp_path, laid=None)
    of_recipe: Any = SimpleNamespace(repository=project, hotfixes=hotfixes)
    of_command: Any = SimpleNamespace(repository=project, hotfixes=hotfixes, build=None, _built={}, _failed={})
    with pytest.raises(CannotProbe, match=r"not our ref.*--megatron PATH"):
        CommitTargets._lay_out(of_recipe, "b" * 40, None, slot)
    with pytest.raises(CannotProbe, match=r"not our ref.*--megatron PATH"):
        CommandTargets._lay_out(of_command, "b" * 40, "tree", slot)
