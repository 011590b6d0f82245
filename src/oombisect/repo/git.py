"""The git command, run so that nothing a repository or a config file says is executed.

Three kinds of call, three environments:

- `LOCAL`: in our own mirrors and worktrees, no transport at all. Neither the user's nor the system's configuration is
  read, so no filter driver (LFS smudge), hook path, fsmonitor or alias exists; hooks are off besides.
- `FOREIGN`: questions put to the user's own repository (read only). The user's configuration is read, because
  `safe.directory` lives there, with everything that could start a program during a read overridden.
- `NETWORK`: clone and fetch. The user's configuration is read (proxy, insteadOf, credential helper, CA); prompts, hooks
  and exotic transports (`ext::`) are off.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path

from oombisect.errors import ExitCode, OombisectError

MINIMUM_VERSION = (2, 39)
_FULL_ID = re.compile(r"[0-9a-f]{40}")
NULL_SHA = "0" * 40

# Author and committer of the commits we synthesise (a tip with a change reverted): fixed, so that their ids are too.
_IDENTITY = {
    f"GIT_{role}_{key}": value
    for role in ("AUTHOR", "COMMITTER")
    for key, value in (("NAME", "oombisect"), ("EMAIL", "oombisect@localhost"), ("DATE", "1700000000 +0000"))
}
_QUIET = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.pager=cat",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.autocrlf=false",
    "core.askPass=",
    "advice.detachedHead=false",
    "diff.external=",
    "diff.ignoreSubmodules=none",
    "fetch.recurseSubmodules=false",
    "submodule.recurse=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "log.showSignature=false",
    "safe.bareRepository=all",
)
# A read must never turn into a download: in a partial clone any question about a missing object would.
_TRANSPORTS = "file:https:http:ssh:git"


class Kind(Enum):
    """Whose repository the command runs in; see the module's text."""

    LOCAL = "local"
    FOREIGN = "foreign"
    NETWORK = "network"


def printable(text: str) -> str:
    """Text of a repository's making for a terminal: no control characters, no undecodable bytes."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


class GitError(OombisectError):
    """A git command failed.

    `stderr` holds its words (made printable: a repository can have a say in them), `status` its exit status, `reason`
    the line that says why.
    """

    def __init__(self, arguments: Sequence[str], status: int, stderr: str) -> None:
        lines = [printable(line.strip()) for line in stderr.splitlines() if line.strip()]
        told = [re.sub(r"^(fatal|error): ", "", line) for line in lines if line.startswith(("fatal:", "error:"))]
        # The first complaint is the cause, later ones what came of it.
        self.reason = (told or lines or [f"exit status {status}"])[0]
        self.status, self.stderr = status, "\n".join(lines)
        cause = f"git {arguments[0]} failed: {self.reason}"
        way_out = "Check the repository with `git fsck`, and the free disk space."
        if "dubious ownership" in self.reason:
            way_out = "The directory belongs to another user: choose another cache directory, or run as that user."
        super().__init__(cause, way_out, ExitCode.INFRASTRUCTURE)


@dataclass(frozen=True, slots=True)
class Git:
    """Runs git in one directory: a repository's git directory or a work tree.

    `settings` ("key=value") and environment `variables` are added to those of its kind; `keep_open` are file
    descriptors the command inherits, so that a lock outlives us for as long as it runs.
    """

    directory: Path
    kind: Kind = Kind.LOCAL
    settings: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    keep_open: tuple[int, ...] = ()

    def command(self, *arguments: str) -> list[str]:
        check_git()
        options = [part for setting in (*_QUIET, *self.settings) for part in ("-c", setting)]
        return ["git", *options, "-C", str(self.directory), *arguments]

    def run(self, *arguments: str, stdin: str | bytes | None = None, ok: Iterable[int] = (0,)) -> str:
        """Standard output as text (undecodable bytes survive as surrogates).

        Raises:
            GitError: the exit status is not one of `ok`.
        """
        return self.raw(*arguments, stdin=stdin, ok=ok).decode("utf-8", "surrogateescape")

    def raw(self, *arguments: str, stdin: str | bytes | None = None, ok: Iterable[int] = (0,)) -> bytes:
        """As `run`, undecoded."""
        return self.call(*arguments, stdin=stdin, ok=ok)[1]

    def call(self, *arguments: str, stdin: str | bytes | None = None, ok: Iterable[int] = (0,)) -> tuple[int, bytes]:
        """Exit status (one of `ok`) and standard output."""
        data = stdin.encode("utf-8", "surrogateescape") if isinstance(stdin, str) else stdin
        done = subprocess.run(
            self.command(*arguments),
            env=environment(self.kind) | dict(self.variables),
            input=data,
            stdin=subprocess.DEVNULL if data is None else None,
            capture_output=True,
            check=False,
            pass_fds=self.keep_open,
            start_new_session=self.kind is Kind.NETWORK,  # without a terminal nothing can stop to ask for a password
        )
        if done.returncode not in tuple(ok):
            raise GitError(arguments, done.returncode, done.stderr.decode("utf-8", "replace"))
        return done.returncode, done.stdout

    def succeeds(self, *arguments: str) -> bool:
        """Whether the command ends with 0 (1 is "no"; anything else is a failure)."""
        return self.call(*arguments, ok=(0, 1))[0] == 0


def commit_named(git: Git, revision: str) -> str | None:
    """The commit a revision (branch, tag, id, `abc123^`) names in a repository; None: it names none there."""
    if not revision or revision.startswith("-") or not revision.isprintable():
        return None
    code, output = git.call("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", ok=(0, 1, 128))
    found = output.decode().strip()
    # `^main` is answered by one, too: `^` and an id.
    return found if code == 0 and _FULL_ID.fullmatch(found) else None


def environment(kind: Kind) -> dict[str, str]:
    """The environment of a git command: no inherited GIT_* state, no prompts, no LFS, C locale."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_ASKPASS": "",
        "SSH_ASKPASS": "",
        "GIT_ALLOW_PROTOCOL": _TRANSPORTS if kind is Kind.NETWORK else "none",
    }
    if kind is Kind.LOCAL:
        env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1", **_IDENTITY}
    if kind is Kind.NETWORK:
        # A user's own transport settings are theirs to give.
        kept = ("GIT_SSH_COMMAND", "GIT_SSH", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_PROXY_COMMAND")
        env |= {name: os.environ[name] for name in kept if name in os.environ}
    return env


@cache
def check_git() -> tuple[int, ...]:
    """The version of the git on PATH.

    Raises:
        OombisectError: there is none, or it is too old (`merge-tree --write-tree`, worktree configuration).
    """
    wanted = ".".join(map(str, MINIMUM_VERSION))
    way_out = f"Install git {wanted} or newer."
    if shutil.which("git") is None:
        raise OombisectError("The git command is not on PATH", way_out, ExitCode.INFRASTRUCTURE)
    try:
        said = subprocess.run(["git", "version"], stdin=subprocess.DEVNULL, capture_output=True, check=False).stdout
    except OSError as error:
        cause = f"The git command on PATH cannot be run: {error.strerror or error}"
        raise OombisectError(cause, way_out, ExitCode.INFRASTRUCTURE) from error
    text = printable(said.decode("utf-8", "replace").strip())
    match = re.match(r"git version (\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", text)
    if match is None:
        cause = f"The git command on PATH does not tell its version; it says {text[:80]!r}"
        raise OombisectError(cause, way_out, ExitCode.INFRASTRUCTURE)
    version = tuple(int(part) for part in match.groups(default="0"))
    if version < MINIMUM_VERSION:
        raise OombisectError(f"git is too old: {text[:80]}", way_out, ExitCode.INFRASTRUCTURE)
    return version
