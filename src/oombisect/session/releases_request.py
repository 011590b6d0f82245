"""What a user asked of `oombisect releases`: a package, a range of its releases, and how to search and probe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oombisect.axes.releases import package_name, parse_releases
from oombisect.errors import OombisectError
from oombisect.session.request import BisectRequest


@dataclass(frozen=True, slots=True)
class ReleasesRequest:
    """The releases of `package` in `search.range`, probed at the Bridge commit `at`.

    `versions`: all points, once they were looked up; a session that goes on keeps to them.
    """

    package: str
    search: BisectRequest
    at: str = "HEAD"
    versions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        package_name(self.package)
        parse_releases(self.search.range)
        if self.search.probe.runs_command:
            raise OombisectError("`releases` probes recipes of Bridge, and a command was given", "Give --recipe NAME.")
        if self.search.probe.per_lock:
            raise OombisectError(
                "--env per-lock is for ranges of commits: a range of releases changes the environment itself",
                "Leave it out.",
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "package": self.package,
            "at": self.at,
            "versions": list(self.versions),
            "search": self.search.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ReleasesRequest:
        search = BisectRequest.from_json(data["search"])
        return cls(data["package"], search, data["at"], tuple(data["versions"]))
