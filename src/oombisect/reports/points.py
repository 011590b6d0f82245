"""Points as people see them."""

from __future__ import annotations

import re

_SHA = re.compile(r"\b[0-9a-f]{40}\b")
_REVERTED = re.compile(r"\b([0-9a-f]{40})-([0-9a-f]{40})\b")


def short(point: str) -> str:
    """Commit ids are shortened, also in keys of reverted tips (`tip-culprit`) and corners; other keys are not."""
    return _SHA.sub(lambda sha: sha[0][:10], _REVERTED.sub(r"\1 without \2", point))
