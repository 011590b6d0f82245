"""Building once, safely, and refusing with a reason."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from oombisect.errors import OombisectError
from oombisect.units import TIB
from oombisect.virtual_gpu import build, compile
from oombisect.virtual_gpu.build import VirtualGpu, prepare
from oombisect.virtual_gpu.profiles import parse_gpu
from oombisect.virtual_gpu.target import Target

TARGET = Target("2.99.0", "13.0", "/torch", (), (), ())


def pretend(monkeypatch: pytest.MonkeyPatch, compiled: Any = None, tested: Any = None) -> list[Path]:
    """Let builds cost nothing. Returns the folders that were compiled in."""
    folders: list[Path] = []

    def compile_libraries(target: Target, folder: Path) -> dict[str, object]:
        folders.append(folder)
        (folder / "library").write_text("built")
        if compiled:
            compiled(folder)
        return {"known": 1}

    monkeypatch.setattr(build, "inspect_target", lambda python, cache: TARGET)
    monkeypatch.setattr(build, "compile_libraries", compile_libraries)
    monkeypatch.setattr(build, "_self_test", tested or (lambda python, virtual: {"failed": None}))
    return folders


def leftovers(cache: Path) -> list[Path]:
    return list((cache / "virtual-gpu").glob(".build-*"))


def test_built_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folders = pretend(monkeypatch)
    told: list[str] = []
    first, second = (prepare(Path("python"), tmp_path, told.append) for _ in range(2))
    assert told == ["building the virtual GPU for torch 2.99.0, once"]
    assert first == second and len(folders) == 1
    assert (first.directory / "library").read_text() == "built" and not leftovers(tmp_path)
    record = json.loads((first.directory / "build.json").read_text())
    assert record == {"known": 1, "self_test": {"failed": None}}


def test_the_key_changes_with_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources = tmp_path / "csrc"
    sources.mkdir()
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setattr(build, "HERE", tmp_path)
    for name in build._GENERATORS:
        (tmp_path / name).write_text("")
    keys = []
    for text in ("one", "two"):
        (sources / "core.c").write_text(text)
        keys.append(build._key(TARGET))
    library = tmp_path / "libcudart.so.13"
    library.write_text("x")
    keys.append(build._key(Target("2.99.0", "13.0", "/torch", (), (str(library),), ())))
    assert len(set(keys)) == 3


def test_a_faster_builder_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def overtaken(folder: Path) -> None:
        home = tmp_path / "virtual-gpu" / f"2.99.0-cuda13.0-{build._key(TARGET)}"
        home.mkdir()
        (home / "build.json").write_text("{}")
        (home / "library").write_text("theirs")

    pretend(monkeypatch, compiled=overtaken)
    assert (prepare(Path("python"), tmp_path).directory / "library").read_text() == "theirs"
    assert not leftovers(tmp_path)


def test_a_failed_self_test_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(python: Path, virtual: VirtualGpu) -> dict[str, object]:
        raise build._refusal("a product and its gradient run (saw: nothing)")

    pretend(monkeypatch, tested=fails)
    for _ in range(2):  # and it is not taken for built the second time
        with pytest.raises(OombisectError, match="failed its self-test: a product") as caught:
            prepare(Path("python"), tmp_path)
        assert "--gpu cuda" in caught.value.way_out
    assert not list((tmp_path / "virtual-gpu").iterdir())


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    pretend(monkeypatch, compiled=full)
    with pytest.raises(OombisectError, match="No space left on device") as caught:
        prepare(Path("python"), tmp_path)
    assert "Free some space" in caught.value.way_out and not leftovers(tmp_path)


def test_abandoned_builds_are_swept_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch)
    old, fresh = tmp_path / "virtual-gpu" / ".build-old", tmp_path / "virtual-gpu" / ".build-fresh"
    for folder in (old, fresh):
        folder.mkdir(parents=True)
    os.utime(old, (1, 1))
    prepare(Path("python"), tmp_path)
    assert leftovers(tmp_path) == [fresh]


@pytest.mark.parametrize("name", ["with space", "with:colon", "with;semicolon"])
def test_a_cache_path_that_cannot_be_preloaded(tmp_path: Path, name: str) -> None:
    with pytest.raises(OombisectError, match="LD_PRELOAD"):
        prepare(Path("python"), tmp_path / name)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(OombisectError, match="needs a C compiler") as caught:
        compile.find_compiler()
    assert "CC" in caught.value.way_out


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("echo 'as: core.o: No space left on device' >&2; exit 1", "No space is left"),
        ("echo 'core.c:1:1: error: what is this' >&2; exit 1", "error: what is this"),
        ("exit 4", "exit code 4"),
    ],
)
def test_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, cause: str) -> None:
    compiler = tmp_path / "mycc"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", f"{compiler} -m64")
    assert compile.find_compiler() == [str(compiler), "-m64"]
    with pytest.raises(OombisectError, match=cause):
        compile.run_compiler(["-c", "core.c"], tmp_path)


def test_the_environment(tmp_path: Path) -> None:
    virtual = VirtualGpu(tmp_path / "home", tmp_path, "2.99.0", "13.0")
    free = virtual.environment(parse_gpu("virtual:h100-80gb"))
    tight = virtual.environment(parse_gpu("virtual:a100-40gb"), limit_bytes=5 << 30, devices=2)
    assert free["LD_PRELOAD"] == str(tmp_path / "home" / "liboombisect_vgpu.so")
    assert free["OOMBISECT_VGPU_LIMIT_BYTES"] == str(TIB) and tight["OOMBISECT_VGPU_LIMIT_BYTES"] == str(5 << 30)
    assert tight["OOMBISECT_VGPU_DEVICES"] == "2" and tight["OOMBISECT_VGPU_MAJOR"] == "8"
    assert free["TRITON_CACHE_DIR"] != tight["TRITON_CACHE_DIR"]  # compiled code depends on the chip
    compiled = [free[name] for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR")]
    assert len(set(compiled)) == 3 and all(Path(place).is_relative_to(virtual.cache) for place in compiled)
    with pytest.raises(OombisectError, match="17 virtual GPUs"):
        virtual.environment(parse_gpu("virtual:h100-80gb"), devices=17)


@pytest.mark.virtual_gpu
def test_a_warm_call_starts_no_process(virtual_gpu: VirtualGpu, python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: object, **options: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", forbidden)
    monkeypatch.setattr(subprocess, "Popen", forbidden)
    assert prepare(python, virtual_gpu.cache) == virtual_gpu


@pytest.mark.virtual_gpu
def test_what_the_build_recorded(virtual_gpu: VirtualGpu) -> None:
    record = json.loads((virtual_gpu.directory / "build.json").read_text())
    assert record["self_test"]["failed"] is None and len(record["self_test"]["checks"]) >= 10
    assert record["known"] == record["written"] + record["answered"] + record["unstubbed"]
    assert record["unstubbed"] > record["known"] * 0.8, "answers are given one by one, not by default"


def _prepare(python: Path, cache: Path) -> str:
    return str(prepare(python, cache).directory)


@pytest.mark.slow
@pytest.mark.virtual_gpu
def test_two_real_builders_at_once(virtual_gpu: VirtualGpu, python: Path, tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        first, second = pool.starmap(_prepare, [(python, tmp_path)] * 2)
    assert first == second and (Path(first) / "build.json").is_file() and not leftovers(tmp_path)
