"""What a branch would be once it is merged, as a commit of our own mirror: the user's repository stays as it is."""

from __future__ import annotations

from oombisect.repo.mirror import Mirror
from oombisect.repo.revert import commit_of_tree


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
