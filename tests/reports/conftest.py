"""One toy session for all tests of reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import command as command  # a fixture
from tests.session import toy

from .toy_report import Reported, document_of, run_session


@pytest.fixture(scope="session")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    folder: Path = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("oombisect.session.opening.open_device", lambda *_: toy.ToyDevice())
        world, report = run_session(folder)
    return Reported(world, report, document_of(world, report.session), folder / "db.sqlite")
