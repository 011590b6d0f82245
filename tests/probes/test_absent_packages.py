"""Which missing packages are answered, that installed ones win, and that nothing absent computes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

from probe_support import absent_packages
from probe_support.absent_packages import ANSWERED_ALWAYS, ANSWERED_IF_MISSING, Finder
from probe_support.outcome import Unresolved


@pytest.fixture
def finder() -> Iterator[Finder]:
    """Answers `absent_thing` and, needlessly, `json`."""
    before = set(sys.modules)
    installed = Finder({"absent_thing": "2.5", "json": "9"})
    sys.meta_path.append(installed)
    yield installed
    sys.meta_path.remove(installed)
    for name in set(sys.modules) - before:
        if name.startswith("absent_thing"):
            del sys.modules[name]


def test_the_lists_name_what_the_documentation_names() -> None:
    assert set(ANSWERED_IF_MISSING) >= {"nvidia_resiliency_ext", "modelopt", "megatron.energon"}
    assert tuple(int(n) for n in ANSWERED_IF_MISSING["nvidia_resiliency_ext"].split(".")) >= (0, 6, 0)
    assert set(ANSWERED_ALWAYS) == {"datasets", "diffusers", "onnxscript"}


def test_a_listed_package_is_answered_with_everything_below_it(finder: Finder) -> None:
    module = importlib.import_module("absent_thing.deep.er")
    assert module.__version__ == "2.5"
    assert finder.used == {"absent_thing"}
    from absent_thing.deep import Something  # type: ignore[import-not-found]

    class Derived(Something):  # type: ignore[misc]
        value = 3

    assert Derived().value == 3


def test_an_unlisted_package_stays_missing(finder: Finder) -> None:
    with pytest.raises(ModuleNotFoundError, match="absent_other"):
        importlib.import_module("absent_other")


def test_an_installed_package_wins(finder: Finder) -> None:
    import json

    assert json.loads("[1]") == [1]
    assert "json" not in finder.used


def test_it_decorates_but_does_not_compute(finder: Finder) -> None:
    thing = importlib.import_module("absent_thing")

    @thing.plain
    def one() -> int:
        return 1

    @thing.factory(retries=3)
    def two() -> int:
        return 2

    assert (one(), two()) == (1, 2)
    value = thing.load("path")
    for use in (lambda: value.rows, lambda: bool(value), lambda: list(value), lambda: value(1), lambda: value[0]):
        with pytest.raises(Unresolved, match="absent_thing"):
            use()


def test_isinstance_of_an_absent_class_is_false(finder: Finder) -> None:
    assert not isinstance(1, importlib.import_module("absent_thing").Number)


def test_missing_knows_installed_from_missing() -> None:
    assert not absent_packages.missing("json")
    assert absent_packages.missing("absent_other")
    assert absent_packages.missing("absent_other.below")
