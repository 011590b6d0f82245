"""The hotfixes of a session on its commits."""

from __future__ import annotations

from dataclasses import dataclass, field

from oombisect.repo.bridge import BridgeRepository
from oombisect.repo.hotfix import Hotfix, HotfixConflict
from oombisect.session.measuring import CannotProbe


@dataclass
class Hotfixes:
    """Every commit is probed with these changes on top."""

    repository: BridgeRepository
    hotfixes: tuple[Hotfix, ...] = ()
    _made: dict[str, str] = field(default_factory=dict)

    def on(self, sha: str) -> str:
        """The commit to lay out in the place of `sha`.

        Raises:
            CannotProbe: a hotfix neither applies to it nor is in it.
        """
        if not self.hotfixes:
            return sha
        if sha not in self._made:
            try:
                self._made[sha] = self.repository.hotfixed(sha, self.hotfixes)
            except HotfixConflict as error:
                raise CannotProbe(error.cause) from error
        return self._made[sha]
