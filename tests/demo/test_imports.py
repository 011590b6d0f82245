import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from oombisect.demo.repository import SUBMODULE, DemoRepository
from oombisect.demo.truth import Truth
from tests.demo.layout import first_parents, git, lay_out, lay_out_source

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch")


def test_all_commits_but_the_broken_ones_import(demo: DemoRepository, facts: Truth, tmp_path: Path) -> None:
    by_tree = {git(demo.path, "rev-parse", f"{sha}:src"): sha for sha in reversed(first_parents(demo))}
    sources = [lay_out_source(demo, sha, tmp_path / sha) for sha in reversed(by_tree.values())]
    megatron = lay_out(demo, demo.bad, tmp_path / "tip") / SUBMODULE
    command = [sys.executable, str(Path(__file__).with_name("import_all.py")), str(megatron), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout.splitlines()[-1])
    failed = {Path(source).name: error for source, error in errors.items() if error}
    broken = [sha for sha in facts.unimportable if sha in by_tree.values()]
    assert len(broken) == 2 and list(failed) == broken
    assert set(failed.values()) == {"ModuleNotFoundError: No module named 'megatron.bridge.utils.common_utils'"}
