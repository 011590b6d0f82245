"""What a branch would be once it is merged, as a commit of our own mirror: the user's repository stays as it is."""

from __future__ import annotations

import re

from oombisect.repo.mirror import Mirror
from oombisect.repo.revert import commit_of_tree

_KEY = re.compile(r"(?P<head>[0-9a-f]{40,64}) onto (?P<base>[0-9a-f]{40,64})", re.ASCII)


def key_of(head: str, base: str) -> str:
    """What the merge of `head` into `base` is called as a point: it is no commit of the user's."""
    return f"{head} onto {base}"


def remade(mirror: Mirror, key: str) -> str | None:
    """The commit of a point by its key (`key_of`), the same whenever it is made; None where `key` is no such key."""
    found = _KEY.fullmatch(key)
    if found is None or not all(map(mirror.has_commit, found.groups())):
        return None
    return merged(mirror, found["base"], found["head"])


def merged(mirror: Mirror, base: str, head: str) -> str | None:
    """`head` merged into `base`: a commit on top of `base`, or `head` itself where it has all of `base`.

    None: they do not merge cleanly, or have no history in common.
    """
    if mirror.local.succeeds("merge-base", "--is-ancestor", base, head):
        return head
    if not mirror.local.succeeds("merge-base", base, head):
        return None
    code, output = mirror.git.call("merge-tree", "--write-tree", "--no-messages", "-z", base, head, ok=(0, 1))
    if code:
        return None
    return commit_of_tree(mirror.local, output.decode().split("\0")[0].strip(), base, f"Merge {head}")
