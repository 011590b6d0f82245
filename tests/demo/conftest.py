"""The demo repository, made once per test session from the megatron-core of this interpreter."""

import sys
from pathlib import Path

import pytest

from oombisect.demo.repository import DemoRepository, build_demo, find_megatron_core
from oombisect.demo.truth import Truth, truth


@pytest.fixture(scope="session")
def megatron_core() -> Path:
    return find_megatron_core(Path(sys.executable))


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory, megatron_core: Path) -> DemoRepository:
    return build_demo(tmp_path_factory.mktemp("demo"), megatron_core)


@pytest.fixture(scope="session")
def facts(demo: DemoRepository) -> Truth:
    return truth(demo)


@pytest.fixture
def small_core(tmp_path: Path) -> Path:
    """Stands for an installed megatron-core where its contents do not matter."""
    core = tmp_path / "site-packages" / "megatron" / "core"
    (core / "transformer").mkdir(parents=True)
    (core / "package_info.py").write_text("MAJOR = 0\n")
    (core / "jit.py").write_text("def disable_jit_fuser():\n    pass\n")
    (core / "transformer" / "router.py").write_text(
        "class Router:\n    @torch.compile\n    def route(self):\n        pass\n"
    )
    return core
