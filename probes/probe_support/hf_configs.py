"""Hugging Face model configurations without a network.

Recipes build models with `AutoBridge.from_hf_pretrained("Qwen/Qwen3-8B", revision=...)`, which needs nothing but the
repository's config.json. Where that lies in the user's own cache, it is used. Where not, a shipped copy is placed in a
cache tree of this probe, under the very revision that was asked for; the network is asked last.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .after_import import after_import
from .outcome import Unresolved

_CONFIG = "config.json"
_NO_REVISION = "0" * 40


class ModelConfigs:
    """Serves config.json of models from `shipped`, a folder of `<organisation>--<name>.json`, by a tree in `out`."""

    def __init__(self, shipped: str | None, out: Path, notes: list[str]) -> None:
        self.shipped = Path(shipped) if shipped else None
        self.tree = out / "hf-cache"
        self.notes = notes
        self.unreachable: set[str] = set()

    def install(self) -> None:
        """Puts itself in front of the function transformers resolves files with, once transformers is imported."""

        def put(where: Any) -> None:
            where.cached_file = self._in_front_of(where.cached_file)

        after_import("transformers.configuration_utils", put)

    def _in_front_of(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def cached_file(path_or_repo_id: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
            repo, revision = str(path_or_repo_id), kwargs.get("revision") or "main"
            if filename != _CONFIG or Path(repo).exists() or self._in_own_cache(repo, revision):
                return real(path_or_repo_id, filename, *args, **kwargs)
            placed = self._place(repo, revision)
            if placed is not None:
                return placed
            if repo in self.unreachable or not _hub_answers():
                self.unreachable.add(repo)  # Bridge tries several times, and the hub's own client does for each
                raise missing_config(repo)
            try:
                return real(path_or_repo_id, filename, *args, **kwargs)
            except OSError as error:
                self.unreachable.add(repo)
                raise missing_config(repo) from error

        return cached_file

    @staticmethod
    def _in_own_cache(repo: str, revision: str) -> bool:
        from huggingface_hub import try_to_load_from_cache

        with contextlib.suppress(Exception):
            return isinstance(try_to_load_from_cache(repo, _CONFIG, revision=revision), str)
        return False

    def _place(self, repo: str, revision: str) -> str | None:
        """The path of the shipped config in a tree laid out as Hugging Face's cache is; None if it is not shipped."""
        if self.shipped is None:
            return None
        source = self.shipped / f"{repo.replace('/', '--')}.json"
        if not source.is_file():
            return None
        base = self.tree / f"models--{repo.replace('/', '--')}"
        commit = revision if len(revision) == 40 else _NO_REVISION
        target = base / "snapshots" / commit / _CONFIG
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f"{_CONFIG}.{os.getpid()}")
            temporary.write_bytes(source.read_bytes())
            temporary.replace(target)
            (base / "refs").mkdir(exist_ok=True)
            (base / "refs" / "main").write_text(commit)
        note = f"config of {repo} (revision {revision}) is the copy shipped with oombisect"
        if note not in self.notes:
            self.notes.append(note)
        return str(target)


def _hub_answers() -> bool:
    """Whether it makes sense to ask the hub: it takes connections, or a proxy stands before it."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or any(name.lower() in ("https_proxy", "all_proxy") for name in os.environ):
        return not constants.HF_HUB_OFFLINE
    address = urlsplit(constants.ENDPOINT)
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((str(address.hostname), port), timeout=5).close()
    except OSError:
        return False
    return True


def missing_config(repo: str) -> Unresolved:
    return Unresolved(
        f"config of {repo} is neither in the Hugging Face cache nor shipped: run `hf download {repo} config.json`"
    )
