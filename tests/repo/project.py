"""A small Bridge project as a fixture."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from oombisect.repo.bridge import BridgeRepository, open_repository
from tests.repo.history import GITLINK, RECIPE, History, modules


@dataclass
class Project:
    """A Bridge history of a few commits with Megatron-LM as its submodule; ids by what they are."""

    bridge: History
    megatron: History
    cache: Path
    ids: dict[str, str]
    said: list[str]

    def open(self, path: Path | None = None, **options: object) -> BridgeRepository:
        where = path or self.bridge.path
        return open_repository(where, self.cache.parent, self.cache, self.said.append, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The two repositories, made once; tests work on copies."""
    root = tmp_path_factory.mktemp("template")
    return root, _make(root)


@pytest.fixture
def project(template: tuple[Path, dict[str, str]], tmp_path: Path) -> Project:
    root, ids = template
    for name in ("upstream", "user"):
        shutil.copytree(root / name, tmp_path / name)
    bridge = History(tmp_path / "user" / "Megatron-Bridge")
    bridge.git("update-index", "-q", "--refresh")
    return Project(bridge, History(tmp_path / "upstream" / "Megatron-LM"), tmp_path / "cache", dict(ids), [])


def _make(root: Path) -> dict[str, str]:
    megatron = History(root / "upstream" / "Megatron-LM")
    m = {
        "m0": megatron.commit("m0", {"megatron/core/__init__.py": "V = 0\n", "docs/a.md": "a\n", "tool.py": "T = 0\n"}),
        "m1": megatron.commit("m1", {"megatron/core/a.py": "A = 1\n"}),
        "m2": megatron.commit("m2", {"megatron/core/__init__.py": "V = 2\n"}),
        "m3": megatron.commit("m3 docs only", {"docs/a.md": "b\n"}),
    }
    bridge = History(root / "user" / "Megatron-Bridge")
    base = {
        ".gitmodules": modules("../../upstream/Megatron-LM"),
        "src/megatron/bridge/__init__.py": "",
        "src/megatron/bridge/model.py": "HIDDEN = 1\n",
        RECIPE: "def qwen3_8b_pretrain_config() -> ConfigContainer: ...\n",
        "pyproject.toml": "[project]\n",
        "uv.lock": "one\n",
        "docs/index.md": "hello\n",
        "tests/test_x.py": "def test(): ...\n",
    }
    ids = {
        "start": bridge.commit("start", base, gitlinks={GITLINK: m["m0"]}),
        "docs": bridge.commit("docs", {"docs/index.md": "more\n"}),
        "grow": bridge.commit("grow", {"src/megatron/bridge/model.py": "HIDDEN = 2\n"}),
        "roll": bridge.commit("roll", {"uv.lock": "two\n"}, gitlinks={GITLINK: m["m2"]}),
        "lock": bridge.commit("lock", {"uv.lock": "three\n"}),
        "other": bridge.commit("other", {"src/megatron/bridge/other.py": "X = 1\n"}),
    }
    bridge.check_out()
    bridge.git("tag", "v1.0.0", ids["start"])
    return {**m, **ids}
