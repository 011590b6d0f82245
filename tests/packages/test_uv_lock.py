"""What a lock says, on small locks of the form uv writes."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from oombisect.probing.environments import NEEDED, find_uv
from oombisect.probing.uv_lock import NEVER_IMPORTED, UnusableLock, read_lock

from .wheels import make_wheel

_REGISTRY = '{ registry = "https://index.invalid/simple" }'


def package(
    name: str, version: str | None, *needs: str, source: str = _REGISTRY, files: bool = True, more: str = ""
) -> str:
    lines = ["[[package]]", f'name = "{name}"', f"source = {source}"]
    lines += [f'version = "{version}"'] if version else []
    lines += [f"dependencies = [{', '.join(needs)}]"] if needs else []
    lines += [f'wheels = [{{ url = "https://files.invalid/{name}-{version}-py3-none-any.whl" }}]'] if files else []
    return "\n".join([*lines, more]) + "\n"


def lock(*packages: str, head: str = 'version = 1\nrevision = 2\nrequires-python = ">=3.10"\n') -> bytes:
    return (head + "\n".join(packages)).encode()


def test_what_is_needed_is_pinned_and_the_rest_is_not() -> None:
    text = lock(
        package("transformers", "5.3.0", '{ name = "tokenizers" }', '{ name = "numpy" }'),
        package("tokenizers", "0.22.2", '{ name = "huggingface-hub" }'),
        package("huggingface-hub", "1.10.1"),
        package("numpy", "1.26.4"),
        package("mlflow", "3.15.1"),
    )
    found = read_lock(text, ["transformers"], "3.12.1")
    pins = [pin.requirement for pin in found.pins]
    assert pins == ["huggingface-hub==1.10.1", "numpy==1.26.4", "tokenizers==0.22.2", "transformers==5.3.0"]
    assert (found.sources, found.left_out) == ({}, ())


def test_what_the_container_brings_is_left_out() -> None:
    """As Bridge has it: torch is locked for a platform that never is, and has no files."""
    text = lock(
        package("torch", "2.13.0", files=False),
        package("accelerate", "1.14.0", '{ name = "torch", marker = "sys_platform == \'never\'" }'),
    )
    found = read_lock(text, ["accelerate", "torch"], "3.12.1")
    assert [pin.name for pin in found.pins] == ["accelerate"]
    assert found.left_out == ("torch",)


def test_a_build_from_git_is_told_with_its_public_version() -> None:
    git = '{ git = "https://git.invalid/te.git?rev=e7c550c5#e7c550c5" }'
    text = lock(
        package("transformer-engine", "2.18.0+e7c550c5", '{ name = "onnx" }', source=git, files=False),
        package("onnx", "1.22.0"),
    )
    found = read_lock(text, ["transformer-engine"], "3.12.1")
    assert found.sources["transformer-engine"].requirement == "transformer-engine<=2.18.0"
    assert found.pins == ()  # what a build from source needs says nothing of what its release needs


def test_a_folder_has_no_version_and_is_passed_over() -> None:
    text = lock(package("megatron-core", None, source='{ editable = "3rdparty/Megatron-LM" }', files=False))
    found = read_lock(text, ["megatron-core"], "3.12.1")
    assert (found.pins, found.sources, found.left_out) == ((), {}, ())


@pytest.mark.parametrize(("python", "version"), [("3.12.1", "1.20.1"), ("3.14.0", "1.19.0")])
def test_a_package_locked_twice_is_that_of_the_python(python: str, version: str) -> None:
    text = lock(
        package("onnx", "1.19.0", more="resolution-markers = [\"python_full_version >= '3.14'\"]"),
        package("onnx", "1.20.1", more="resolution-markers = [\"python_full_version < '3.14'\"]"),
    )
    assert [pin.version for pin in read_lock(text, ["onnx"], python).pins] == [version]


@pytest.mark.parametrize(("python", "version"), [("3.12.1", "0.7.0"), ("3.13.0", "0.4.0")])
def test_an_edge_with_a_version_and_a_marker_is_followed(python: str, version: str) -> None:
    one = '{ name = "rich", version = "0.4.0", marker = "python_full_version >= \'3.13\'" }'
    two = '{ name = "rich", version = "0.7.0", marker = "python_full_version < \'3.13\'" }'
    text = lock(package("typer", "1.0", one, two), package("rich", "0.4.0"), package("rich", "0.7.0"))
    assert [pin.requirement for pin in read_lock(text, ["typer"], python).pins] == [f"rich=={version}", "typer==1.0"]


def test_an_extra_that_is_asked_for_is_followed() -> None:
    extra = '[package.optional-dependencies]\ncublas = [{ name = "nvidia-cublas" }]\nother = [{ name = "unasked" }]'
    text = lock(
        package("torch", "2.14.1", '{ name = "cuda-toolkit", extra = ["cublas"] }'),
        package("cuda-toolkit", "13.0.3", more=extra),
        package("nvidia-cublas", "13.1"),
        package("unasked", "1"),
    )
    assert [pin.name for pin in read_lock(text, ["torch"], "3.12.1").pins] == ["cuda-toolkit", "nvidia-cublas", "torch"]


def test_circles_end() -> None:
    text = lock(package("a", "1", '{ name = "b" }'), package("b", "1", '{ name = "a" }'))
    assert len(read_lock(text, ["a"], "3.12.1").pins) == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"\xff\xfe", "cannot be read"),
        (b"version = [", "cannot be read"),
        (b"a = " + b"[" * 100_000, "cannot be read"),
        (b"version = 2", "format 2"),
        (b"", "format None"),
        (lock(head='version = 1\nrequires-python = "==3.11.*"\n'), "for Python ==3.11"),
        (lock(head='version = 1\nrequires-python = "three"\n'), "no version"),
        (lock("package = 3"), "not of the form"),
        (lock('[[package]]\nname = "torch"\n'), "not of the form"),
        (lock(package("torch", "late")), "no version"),
        (lock(package("torch", "1", more='resolution-markers = ["nonsense"]')), "marker"),
        (lock(package("torch", "1", more="resolution-markers = 1")), "not of the form"),
    ],
)
def test_what_is_no_lock_is_said_to_be_none(text: bytes, reason: str) -> None:
    with pytest.raises(UnusableLock, match=reason):
        read_lock(text, ["torch"], "3.12.1")


_WHOLE = lock(
    package("transformers", "5.3.0", '{ name = "tokenizers", marker = "python_full_version < \'4\'" }'),
    package("tokenizers", "0.22.2", more="resolution-markers = [\"sys_platform == 'linux'\"]"),
    package("te", "2.18.0+e7", source='{ git = "https://git.invalid/te.git" }', files=False),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(_WHOLE) - 1), st.binary(max_size=3)), min_size=1, max_size=4))
def test_a_spoiled_lock_is_read_or_refused_in_words(edits: list[tuple[int, bytes]]) -> None:
    text = _WHOLE
    for place, new in edits:
        text = text[:place] + new + text[place + len(new) // 2 + 1 :]
    try:
        read_lock(text, ["transformers", "te"], "3.12.1")
    except UnusableLock as error:
        assert str(error)


def test_a_name_that_is_an_option_is_refused() -> None:
    with pytest.raises(UnusableLock, match="no name"):
        read_lock(
            lock(package("torch", "1", '{ name = "--index=evil" }'), package("--index=evil", "1")), ["torch"], "3.12.1"
        )


def test_what_is_needed_is_what_the_extras_say() -> None:
    """NEEDED is written out for the driver, which may be installed without its metadata's extras in mind."""
    requires = [Requirement(text) for text in importlib.metadata.requires("oombisect") or ()]
    ours = [{"extra": extra} for extra in ("probe", "bridge")]
    extras = {
        canonicalize_name(r.name)
        for r in requires
        if r.marker and not r.marker.evaluate({"extra": ""}) and any(map(r.marker.evaluate, ours))
    }
    assert set(NEEDED) == extras - NEVER_IMPORTED - {"megatron-core"}  # that one is the submodule's source


def test_a_lock_that_uv_wrote_is_read(tmp_path: Path, index: Path) -> None:
    make_wheel(index, "tokenizers", "0.22")
    make_wheel(index, "transformers", "5.3", ["tokenizers<1"])
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "toy"\nversion = "1"\nrequires-python = ">=3.10"\n'
        'dependencies = ["transformers", "torch"]\n'
        "[tool.uv]\noverride-dependencies = [\"torch; sys_platform == 'never'\"]\n"
    )
    make_wheel(index, "torch", "2.13")
    subprocess.run([find_uv(), "lock", "--quiet", "--python", sys.executable], cwd=tmp_path, check=True)
    found = read_lock((tmp_path / "uv.lock").read_bytes(), ["transformers", "torch"], "3.12.1")
    assert [pin.requirement for pin in found.pins] == ["tokenizers==0.22", "transformers==5.3"]
    assert found.left_out == ("torch",)
