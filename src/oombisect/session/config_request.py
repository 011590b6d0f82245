"""What a user asked `config` for: two sides, the commit they run at, how to search and how to probe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oombisect import hints
from oombisect.errors import OombisectError
from oombisect.recipes.config_load import load_config
from oombisect.session.request import BisectRequest, ProbeRequest
from oombisect.session.snapshots_of import names_probe

if TYPE_CHECKING:
    from oombisect.history.store import Store

_YAML = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class SideRequest:
    """One side as it was named: a recipe, a YAML file or a probe; overrides as Bridge writes them; variables."""

    text: str
    overrides: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SideRequest:
        return cls(data["text"], tuple(data["overrides"]), dict(data["env"]))

    @property
    def label(self) -> str:
        """The side in a line."""
        own = [*self.overrides, *(f"env:{name}={value}" for name, value in sorted(self.env.items()))]
        return " ".join([self.text, *own])


@dataclass(frozen=True, slots=True)
class ConfigRequest:
    """A whole `config`. `probe.recipe` is the recipe that YAML files and probes are laid over; "": the other side's."""

    good: SideRequest
    bad: SideRequest
    probe: ProbeRequest
    at: str = "HEAD"
    find: str = "regression"
    budget: int | None = None
    min_step_bytes: int | None = None
    exhaustive: bool = False
    jobs: int | None = 1

    def __post_init__(self) -> None:
        if self.probe.per_lock:
            raise OombisectError(
                "--env per-lock is for ranges of commits, and both configs run at one", "Leave it out, or use --python."
            )
        BisectRequest("", self.probe, self.find, budget=self.budget, min_step_bytes=self.min_step_bytes, jobs=self.jobs)
        if self.probe.runs_command:
            raise OombisectError(
                f"--recipe {self.probe.recipe} has no config", "Both sides are configs of recipes of Bridge."
            )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ConfigRequest:
        sides = {name: SideRequest.from_json(data[name]) for name in ("good", "bad")}
        return cls(**{**data, **sides, "probe": ProbeRequest.from_json(data["probe"])})


@dataclass(frozen=True, slots=True)
class Source:
    """Where a side's config comes from: a recipe's name, and what is laid over it."""

    recipe: str
    config: Mapping[str, Any] | None = None
    overrides: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def sources_of(request: ConfigRequest, store: Store) -> tuple[Source, Source]:
    """Both sides, files and stored configs read.

    Raises:
        OombisectError: a side is not what it must be, or nothing says which recipe a config belongs to.
    """
    found = [_source(side, store) for side in (request.good, request.bad)]
    known = [request.probe.recipe, *(source.recipe for source in found)]
    base = next((recipe for recipe in known if recipe), None)
    if base is None:
        raise OombisectError(
            f"Neither {request.good.text} nor {request.bad.text} says which recipe it was made with",
            "Name it with --recipe: a YAML file holds values, and the recipe's code is needed to run them.",
        )
    shared = request.probe.env
    good, bad = (
        Source(
            (request.probe.recipe if source.config is not None else "") or source.recipe or base,
            source.config,
            (*request.probe.overrides, *side.overrides),
            {**source.env, **shared, **side.env},
        )
        for source, side in zip(found, (request.good, request.bad), strict=True)
    )
    return good, bad


def _source(side: SideRequest, store: Store) -> Source:
    if side.text.lower().endswith(_YAML):
        return Source("", load_config(Path(side.text).expanduser()))
    if names_probe(side.text):
        return _probed(side.text, store)
    return Source(side.text)


def _probed(text: str, store: Store) -> Source:
    session, _, number = text.rpartition("/")
    probe = store.probe(int(number))
    name = f"{probe.spec.session}/{probe.id}"
    if session and store.session(session).id != probe.spec.session:
        raise OombisectError(f"Session {session} has no probe {number}: it is {name}", f"Name it {name}.")
    reading = probe.reading
    config = store.config(reading.config_hash) if reading and reading.config_hash else None
    if config is None:
        raise OombisectError(
            f"Probe {name} stored no config" + (f": {reading.reason}" if reading and reading.reason else ""),
            f"Name a probe that got as far as its config; `{hints.command('show')}` lists a session's probes.",
        )
    return Source(probe.spec.recipe, config, env=dict(probe.spec.settings.get("env") or {}))
