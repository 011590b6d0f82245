"""Where commits lie in a repository: on the first-parent line of its main branch, or on which branch off it.

Only asks the user's repository what it has: nothing is fetched, nothing is written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from oombisect.repo.git import Git, Kind

MAIN = ""
_SHA = re.compile(r"[0-9a-f]{40}")
_REMOTES = ("origin", "upstream")


def lines_of(repository: Path, commits: Collection[str]) -> dict[str, tuple[str, int]]:
    """The line and the position of those of the commits that the repository has.

    A position counts first parents, so that positions ascend along every line, and neighbours differ by one. A commit
    off the main line is on the branch that leads to it, else on a line named by where it left.
    """
    git = Git(repository, Kind.FOREIGN)
    wanted = set(_present(git, {commit for commit in commits if _SHA.fullmatch(commit)}))
    tip = _main(git) if wanted else None
    if tip is None:
        return {}
    main = {sha: n for n, sha in enumerate(git.run("rev-list", "--first-parent", "--reverse", tip).split())}
    found = {sha: (MAIN, main[sha]) for sha in wanted if sha in main}
    if rest := sorted(wanted - main.keys()):
        found |= _beside(git, main, rest)
    return found


def _main(git: Git) -> str | None:
    """The tip of the main branch: of what the remotes and the repository itself have of it, the furthest."""
    names = [f"refs/remotes/{remote}/{branch}" for remote in _REMOTES for branch in ("HEAD", "main", "master")]
    names += ["refs/heads/main", "refs/heads/master"]
    asked = [f"{name}^{{commit}}" for name in names]
    told = git.run("cat-file", "--batch-check=%(objectname)", stdin="\n".join(asked)).splitlines()
    tips = list(dict.fromkeys(line for line in told if _SHA.fullmatch(line)))
    if not tips:
        code, head = git.call("rev-parse", "--verify", "--quiet", "HEAD^{commit}", ok=(0, 1, 128))
        return head.decode().strip() if code == 0 else None
    return max(tips, key=lambda tip: int(git.run("rev-list", "--first-parent", "--count", tip)))


def _present(git: Git, commits: Collection[str]) -> list[str]:
    asked = "\n".join(sorted(commits))
    told = git.run("cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=asked).splitlines() if asked else []
    return [line.split()[0] for line in told if line.endswith(" commit")]


def _beside(git: Git, main: Mapping[str, int], commits: Collection[str]) -> dict[str, tuple[str, int]]:
    """The places of commits off the main line.

    A commit is on the branch, of several the one with the shortest name, whose tip leads to it along first parents. Of
    what no branch leads to (it was merged, or its branch is gone) each chain is a line of its own.
    """
    # Children before parents, whatever their dates: a chain begins at its tip.
    order = ("--topo-order", "--parents", "--branches", "--remotes", "--stdin")
    told = git.run("rev-list", *order, stdin="\n".join(commits)).splitlines()
    first = {sha: parents.partition(" ")[0] for sha, _, parents in (line.partition(" ") for line in told)}
    wanted = set(commits)
    tips = _branches(git) + [(sha, "") for sha in first if sha in wanted]
    placed: dict[str, tuple[str, int]] = {}
    for tip, branch in tips:
        chain, at = [], tip
        while at and at not in main and at not in placed:
            chain.append(at)
            at = first.get(at, "")
        base = main[at] if at in main else placed[at][1] if at else -1
        name = branch or (f"off {at[:10]}" if at else f"up to {tip[:10]}")
        placed |= {sha: (name, base + n) for n, sha in enumerate(reversed(chain), 1)}
    return {sha: placed[sha] for sha in commits}


def _branches(git: Git) -> list[tuple[str, str]]:
    """Tips and names of the branches, those with short names first; a remote's name is left out."""
    told = git.run("for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/remotes").splitlines()
    found = [(line[:40], re.sub(r"^refs/(heads|remotes/[^/]+)/", "", line[41:])) for line in told]
    return sorted(found, key=lambda branch: (len(branch[1]), branch[1], branch[0]))
