"""Environments over another one: real uv, real environments, tiny packages."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oombisect.errors import ExitCode, OombisectError
from oombisect.probing import environments
from oombisect.probing.environments import CannotBuild, Change, Environments, link_sites, prune
from oombisect.probing.interpreter import Interpreter, inspect_interpreter

from .wheels import ROOT, make_environment, make_wheel


@pytest.fixture
def base(tmp_path: Path, index: Path) -> Interpreter:
    """torch 2 with its libraries, and transformers that wants tokenizers."""
    for version in ("2.0", "2.1"):
        make_wheel(
            index,
            "torch",
            version,
            [f"cuda{version[0]}{version[2]}[blas]", f"dnn{version[0]}{version[2]}", "filelock", 'x; extra == "y"'],
        )
        name = f"dnn{version[0]}{version[2]}"  # both into one folder, as cuDNN's packages for CUDA 12 and 13 do
        make_wheel(index, name, "9", files={"nvidia/dnn/include/dnn.h": version, f"nvidia/dnn/{name}.py": ""})
    make_wheel(index, "cuda20", "13", ['blas20; extra == "blas"'])
    make_wheel(index, "cuda21", "14", ['blas21; extra == "blas"'])
    make_wheel(index, "blas20", "1", files={"nvidia/blas20/blas.py": ""})
    make_wheel(index, "blas21", "1", files={"nvidia/blas21/blas.py": ""})
    make_wheel(index, "filelock", "3")
    make_wheel(index, "tokenizers", "0.22")
    make_wheel(index, "tokenizers", "0.23")
    make_wheel(index, "transformers", "5.0", ["tokenizers<0.23"])
    make_wheel(index, "transformers", "5.1", ["tokenizers>=0.23"])
    make_wheel(index, "mine", "1")
    return inspect_interpreter(make_environment(tmp_path / "base", "torch==2.0", "transformers==5.0", "mine"))


def versions(python: Path) -> dict[str, str]:
    return dict(package.split("==") for package in inspect_interpreter(python).packages)


def imported(python: Path, code: str) -> str:
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_exactly_these_and_all_else_as_before(base: Interpreter, tmp_path: Path) -> None:
    before = versions(base.path)
    found = Environments(base, tmp_path / "cache").interpreter(Change(("transformers==5.1",)))
    assert versions(found.path) == before | {"transformers": "5.1"}  # tokenizers 0.22 stays: nothing else was asked for
    assert imported(found.path, "import transformers; print(transformers.__version__)") == "5.1"
    assert versions(base.path) == before
    assert imported(base.path, "import transformers; print(transformers.__version__)") == "5.0"


def test_what_a_release_needs_comes_with_it_and_what_only_the_old_one_needed_goes(
    base: Interpreter, tmp_path: Path
) -> None:
    before = versions(base.path)
    found = Environments(base, tmp_path / "cache").interpreter(Change(("torch==2.1",), dependencies=True))
    expected = before | {"torch": "2.1", "cuda21": "14", "blas21": "1", "dnn21": "9"}
    del expected["cuda20"], expected["blas20"], expected["dnn20"]
    assert versions(found.path) == expected
    assert (
        imported(found.path, "import nvidia.blas21.blas, importlib.util as u; print(u.find_spec('nvidia.blas20'))")
        == "None"
    )
    (shared,) = found.path.parent.parent.glob("lib/python*/site-packages/nvidia/dnn/include/dnn.h")
    assert shared.read_text() == "2.1"
    assert versions(base.path) == before
    moved = Environments(base, tmp_path / "cache").interpreter(Change(("transformers==5.1",), dependencies=True))
    assert versions(moved.path)["tokenizers"] == "0.23"


def test_no_requirement_is_the_sessions_own(base: Interpreter, tmp_path: Path) -> None:
    assert Environments(base, tmp_path / "cache").interpreter(Change(())) is base
    assert not (tmp_path / "cache").exists()


def test_it_is_built_once(base: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change = Change(("transformers==5.1",))
    found = Environments(base, tmp_path / "cache").interpreter(change)
    monkeypatch.setattr(environments.Uv, "run", None)
    assert Environments(base, tmp_path / "cache").interpreter(change) == found


def test_the_newest_up_to_a_version_is_not_whatever_is_there(base: Interpreter, index: Path, tmp_path: Path) -> None:
    make_wheel(index, "tokenizers", "0.22.5")
    found = Environments(base, tmp_path / "cache").interpreter(Change(("tokenizers<=0.22.9",)))
    assert versions(found.path)["tokenizers"] == "0.22.5"


@pytest.mark.parametrize(
    ("requirement", "dependencies", "reason"),
    [("torch==9", False, "no version of torch==9"), ("broken==1", True, "nowhere")],
)
def test_what_cannot_be_built_says_why_and_leaves_nothing(
    base: Interpreter, index: Path, tmp_path: Path, requirement: str, dependencies: bool, reason: str
) -> None:
    make_wheel(index, "broken", "1", ["nowhere"])
    built = Environments(base, tmp_path / "cache")
    with pytest.raises(CannotBuild, match=reason):
        built.interpreter(Change((requirement,), dependencies))
    assert [path.suffix for path in (tmp_path / "cache/environments").iterdir()] == [".lock"]


def test_an_index_that_does_not_answer_is_no_verdict(
    base: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "nowhere.toml"
    settings.write_text('index-url = "http://127.0.0.1:9/simple"\n')
    monkeypatch.setenv("UV_CONFIG_FILE", str(settings))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(OombisectError) as caught:
        Environments(base, tmp_path / "cache").interpreter(Change(("torch==2.1",)))
    assert caught.value.exit_code == ExitCode.INFRASTRUCTURE


def test_without_uv_it_is_said_where_to_get_it(
    base: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PATH", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "empty"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "empty/python"))
    assert Path(environments.find_uv()).name == "uv", "the package uv, as `make env` installs it, is not found"
    monkeypatch.setitem(sys.modules, "uv", None)
    with pytest.raises(OombisectError, match="uv is not installed"):
        Environments(base, tmp_path / "cache").interpreter(Change(("torch==2.1",)))


def test_the_projects_own_settings_have_no_say(
    base: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bridge's pyproject.toml overrides torch away: in its folder too one must get the torch that was asked for."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text("[tool.uv]\noverride-dependencies = ['torch==2.0']\n")
    monkeypatch.chdir(project)
    found = Environments(base, tmp_path / "cache").interpreter(Change(("torch==2.1",), dependencies=True))
    assert versions(found.path)["torch"] == "2.1"


_BUILD = """
import sys
from pathlib import Path
from oombisect.probing import environments
from oombisect.probing.environments import Change, Environments
from oombisect.probing.interpreter import inspect_interpreter
run = environments.Uv.run
def counted(self, *arguments):
    if arguments[:2] == ("pip", "install"):
        with open(sys.argv[3], "a") as log:
            log.write("install\\n")
        if len(sys.argv) > 4:
            import time; time.sleep(60)
    return run(self, *arguments)
environments.Uv.run = counted
base = inspect_interpreter(Path(sys.argv[1]))
print(Environments(base, Path(sys.argv[2])).interpreter(Change(("transformers==5.1",))).path)
"""


def builder(base: Interpreter, cache: Path, log: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _BUILD, str(base.path), str(cache), str(log), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True)


def test_builders_at_once_build_it_once(base: Interpreter, tmp_path: Path) -> None:
    log = tmp_path / "log"
    running = [builder(base, tmp_path / "cache", log) for _ in range(3)]
    told = {process.communicate(timeout=120)[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(told) == 1
    assert log.read_text().splitlines() == ["install"]


def test_a_killed_builder_leaves_nothing_that_counts(base: Interpreter, tmp_path: Path) -> None:
    cache, log = tmp_path / "cache", tmp_path / "log"
    process = builder(base, cache, log, "hang")
    deadline = time.monotonic() + 60
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    left = [path for path in (cache / "environments").iterdir() if path.suffix != ".lock"]
    assert [path.name[0] for path in left] == ["."]  # under its temporary name
    found = Environments(base, cache).interpreter(Change(("transformers==5.1",)))
    assert versions(found.path)["transformers"] == "5.1"
    assert {path.name for path in (cache / "environments").iterdir() if path.suffix != ".lock"} == {
        found.path.parent.parent.name
    }


def test_a_half_environment_is_built_again(base: Interpreter, tmp_path: Path) -> None:
    change = Change(("transformers==5.1",))
    found = Environments(base, tmp_path / "cache").interpreter(change)
    (found.path.parent.parent / "built.json").unlink()
    again = Environments(base, tmp_path / "cache").interpreter(change)
    assert json.loads((again.path.parent.parent / "built.json").read_text())["requirements"] == ["transformers==5.1"]


def test_what_nobody_used_for_long_is_deleted_and_built_again_when_it_is_wanted(
    base: Interpreter, tmp_path: Path
) -> None:
    cache, change = tmp_path / "cache", Change(("transformers==5.1",))
    day = 24 * 3600
    held = Environments(base, cache)
    home = held.interpreter(change).path.parent.parent
    long_ago = time.time() - 40 * day
    os.utime(home / "built.json", (long_ago, long_ago))
    assert prune(cache, 30 * day) == () and home.is_dir(), "a session holds it"
    del held
    assert prune(cache, 50 * day) == () and home.is_dir(), "not as long as that"
    (pruned,) = prune(cache, 30 * day)
    assert (pruned.path, pruned.requirements) == (home, change.requirements)
    assert 0 < pruned.bytes < 1 << 20, "what is linked to the session's own environment is not its"
    assert [path.name for path in home.parent.iterdir()] == [f"{home.name}.lock"]
    again = Environments(base, cache).interpreter(change)
    assert versions(again.path)["transformers"] == "5.1"
    assert prune(cache, 30 * day) == (), "it was used just now"
    assert versions(base.path)["transformers"] == "5.0"


def test_what_killed_builders_left_goes_and_what_is_being_built_stays(base: Interpreter, tmp_path: Path) -> None:
    cache, log = tmp_path / "cache", tmp_path / "log"
    assert prune(cache, 0) == () and not cache.exists()
    process = builder(base, cache, log, "hang")
    deadline = time.monotonic() + 60
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert prune(cache, 0) == ()
    assert [path for path in (cache / "environments").iterdir() if path.suffix != ".lock"]
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert prune(cache, 0) == ()
    assert not [path for path in (cache / "environments").iterdir() if path.suffix != ".lock"]


def test_another_environment_below_is_another_key(base: Interpreter) -> None:
    other = Interpreter(base.path, base.version, (*base.packages, "new==1"))
    change = Change(("transformers==5.1",))
    assert change.key(base) != change.key(other)
    assert change.key(base) != Change(change.requirements, dependencies=True).key(base)


def test_an_earlier_folder_hides_a_later_one_and_namespaces_are_joined(tmp_path: Path) -> None:
    one, two, into = tmp_path / "one", tmp_path / "two", tmp_path / "into"
    for folder, name, text in (
        (one, "torch/__init__.py", "new"), (one, "torch-2.1.dist-info/METADATA", "2.1"), (one, "nvidia/a/x.so", "a"),
        (two, "torch/__init__.py", "old"), (two, "torch/gone.py", "old"), (two, "torch-2.0.dist-info/METADATA", "2.0"),
        (two, "nvidia/b/y.so", "b"), (two, "alone.py", "two"),
    ):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (one / "link.so").symlink_to("nvidia/a/x.so")
    into.mkdir()
    link_sites((one, two), into)
    found = sorted(str(path.relative_to(into)) for path in into.rglob("*") if path.is_file())
    assert found == [
        "alone.py", "link.so", "nvidia/a/x.so", "nvidia/b/y.so", "torch-2.1.dist-info/METADATA", "torch/__init__.py",
    ]  # fmt: skip
    assert (into / "torch/__init__.py").read_text() == "new"
    assert (into / "torch/__init__.py").samefile(one / "torch/__init__.py")


def test_another_file_system_is_linked_symbolically(
    base: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    before = versions(base.path)
    found = Environments(base, tmp_path / "cache").interpreter(Change(("torch==2.1",), dependencies=True))
    monkeypatch.undo()
    assert versions(found.path)["torch"] == "2.1"
    assert versions(base.path) == before
    assert imported(base.path, "import torch, transformers; print(torch.__version__)") == "2.0"
    shutil.rmtree(found.path.parent.parent)
    assert imported(base.path, "import torch, transformers; print(torch.__version__)") == "2.0"
