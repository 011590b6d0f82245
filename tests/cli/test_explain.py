"""`oombisect explain` on the command line: exit codes, JSON, bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.cli.test_bad_input import refused
from tests.cli.test_exits import signals_as_in_a_terminal

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.06 GiB. GPU 1 has a total capacity of 15.56 GiB "
    "of which 2.74 GiB is free. Including non-PyTorch memory, this process has 12.37 GiB memory in use. Of the "
    "allocated memory 6.55 GiB is allocated by PyTorch, and 5.53 GiB is reserved by PyTorch but unallocated."
)
LOG = f"""start
\x1b[31m[rank3]: {OOM}\x1b[0m
{OOM}
[rank0]: node:77:91 [0] NCCL WARN Cuda failure 2 'out of memory'
(NVSHMEMX_ERROR_OUT_OF_MEMORY) No more teams available (max = 7)
"""


def explain(*arguments: str, given: bytes | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from oombisect.cli.main import main; main()", "explain", *arguments]
    done = subprocess.run(command, input=given, capture_output=True, timeout=120, check=False)
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "train.log"
    path.write_text(LOG)
    return str(path)


def test_a_log(log: str) -> None:
    done = explain(log)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "2 out-of-memory errors; the first in the log: rank 3, line 2" in said
    assert said.index("rank 3\n") < said.index("rank 0\n"), "in the order in which they ran out of memory"
    assert "line 2, printed 2 times: PyTorch's CUDA allocator ran out of device memory on GPU 1, asking for 5" in said
    assert "reserved but unallocated       5.530 GiB  ± 0.005" in said
    assert "fragmentation is possible, not proven" in said and "oombisect replay" in said
    assert "NCCL ran out of device memory on GPU 0 (process 77)" in said
    assert "line 5: no out-of-memory error: NVSHMEM ran out of team slots" in said
    assert "\x1b" not in said and done.stderr == ""


def test_json(log: str) -> None:
    told = json.loads(explain(log, "--json").stdout)
    assert (told["schema"], told["is_oom"], told["exit"], told["first_rank"]) == (1, True, 0, 3)
    assert (told["source"], told["requested_bytes"], told["rank"]) == ("pytorch-cuda", round(5.06 * 2**30), 3)
    assert told["requested_precision_bytes"] == 5368710 and told["verdict"] == "fragmentation-possible"
    assert [record["source"] for record in told["records"]] == ["pytorch-cuda", "nccl"]
    assert [record["printed"] for record in told["records"]] == [2, 1]
    assert [look_alike["line"] for look_alike in told["look_alikes"]] == [5]


def test_standard_input() -> None:
    done = explain("-", given=f"\xff\xfe{OOM}".encode("latin-1"))
    assert done.returncode == 0 and "standard input: 1 out-of-memory error;" in done.stdout


def test_a_standard_input_that_was_closed_is_empty() -> None:
    command = [sys.executable, "-c", "from oombisect.cli.main import main; main()", "explain", "-"]
    done = subprocess.run(["bash", "-c", '"$@" <&-', "bash", *command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (1, "standard input: no out-of-memory error\n", "")


def test_none() -> None:
    done = explain("-", given=b"all is well\n")
    assert (done.returncode, done.stdout) == (1, "standard input: no out-of-memory error\n")
    told = json.loads(explain("-", "--json", given=b"").stdout)
    assert (told["is_oom"], told["exit"], told["records"]) == (False, 1, [])


def test_many_errors_are_a_line_each() -> None:
    lines = [f"[rank{rank}]: {OOM}" for rank in range(40)]
    said = explain("-", given="\n".join(lines).encode()).stdout
    assert said.count("capacity of the device") == 8
    assert "rank 39, line 40: PyTorch's CUDA allocator ran out" in said


def test_control_characters_of_a_log_are_not_printed(tmp_path: Path) -> None:
    evil = tmp_path / "a\x1b[2Jb"
    evil.write_text("RuntimeError: CUDA error: out of memory \x07\x9b2J\u202e\n")
    done = explain(str(evil))
    assert done.returncode == 0 and "a?[2Jb: 1 out-of-memory error" in done.stdout
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(done.stdout)


@pytest.mark.parametrize(("name", "words"), [("no-such.log", "No such file"), (".", "directory"), ("", "directory")])
def test_what_cannot_be_read(tmp_path: Path, name: str, words: str) -> None:
    refused(explain(str(tmp_path / name)), 2, "cannot be read", words, "Name the file of a log")


def test_a_failure_is_a_document_too(tmp_path: Path) -> None:
    done = explain(str(tmp_path / "none"), "--json")
    assert done.returncode == 2 and json.loads(done.stdout)["exit"] == 2


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    """As of a shell's `<(command)`."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(LOG,))
    writer.start()
    done = explain(str(tmp_path / "pipe"))
    writer.join()
    assert done.returncode == 0 and "2 out-of-memory errors" in done.stdout


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null"])
def test_a_device_is_no_log(name: str) -> None:
    refused(explain(name), 2, "is a device, not a log", "- to read standard input")


def test_a_terminal_is_told_how_to_leave_a_pipe(tmp_path: Path) -> None:
    """Its other end may never come; where stderr is no terminal nothing is said."""
    os.mkfifo(tmp_path / "pipe")
    seen, shown = os.openpty()
    command = [sys.executable, "-c", "from oombisect.cli.main import main; main()", "explain", str(tmp_path / "pipe")]
    process = subprocess.Popen(command, stderr=shown, stdout=subprocess.PIPE, preexec_fn=signals_as_in_a_terminal)
    os.close(shown)
    said = b""
    while b"\n" not in said:
        said += os.read(seen, 1000)
    assert said.strip() == b"oombisect: reading a pipe, Ctrl-C ends it"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    os.close(seen)
    assert (process.returncode, out) == (130, b"")


def memory_of(chunks: Iterable[bytes]) -> int:
    """The most bytes that Python holds at a time while a log is explained."""
    from oombisect.memory.oom_messages import groups, read_messages

    tracemalloc.start()
    try:
        groups.summarize(read_messages(chunks))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_line_that_never_ends_takes_no_memory() -> None:
    line = b"\0" * (1 << 20)
    memory_of([line])
    assert memory_of(line for _ in range(8)) < memory_of(line for _ in range(2)) + (1 << 19)


def test_errors_that_never_end_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from oombisect.memory.oom_messages import groups

    def errors(count: int) -> Iterator[bytes]:
        return (f"{OOM.replace('5.06', f'{5 + n / 100:.2f}')}\n\n".encode() for n in range(count))

    monkeypatch.setattr(groups, "_MOST", 5)
    memory_of(errors(10))
    assert memory_of(errors(1200)) < memory_of(errors(200)) + 150_000
