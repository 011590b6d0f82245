"""The command line within the test's own process: fast, and without its signal handlers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from oombisect.cli.main import main


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON document it printed."""
        return json.loads(self.out)

    def refused(self, code: int, *words: str) -> None:
        """It ended with `code`, said all `words` on stderr, nothing on stdout, and showed no traceback."""
        assert (self.code, self.out) == (code, ""), self.err
        assert "Traceback" not in self.err and "is a bug" not in self.err
        for word in words:
            assert word in self.err, self.err


Command = Callable[..., Said]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`command("replay", "a.gz")` in a folder of its own, with data and cache there."""
    for name in ("ignore_signals", "raise_on_signals"):
        monkeypatch.setattr(f"oombisect.cli.main.{name}", lambda: None)
    monkeypatch.setenv("OOMBISECT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | os.PathLike[str]) -> Said:
        monkeypatch.setattr("sys.argv", ["oombisect", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Said(int(ended.value.code or 0), said.out, said.err)

    return run
