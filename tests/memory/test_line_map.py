"""Lines carried over by a diff, and positions paired."""

from __future__ import annotations

import difflib

from hypothesis import given
from hypothesis import strategies as st

from oombisect.memory.line_map import align, parse_diff

TEXTS = st.lists(st.sampled_from(["a", "b", "c", "d", "", "-- x", "++ y", "@@ z"]), max_size=30)


def diff_of(old: list[str], new: list[str], context: int) -> str:
    body = difflib.unified_diff(old, new, "a/x.py", "b/x.py", n=context, lineterm="")
    return "\n".join(["diff --git a/x.py b/x.py", "index 1..2 100644", *body]) + "\n"


@given(TEXTS, TEXTS, st.integers(0, 3))
def test_lines_that_are_carried_over_are_the_same_lines(old: list[str], new: list[str], context: int) -> None:
    files = parse_diff(diff_of(old, new, context))
    if old == new:
        assert files == ()
        return
    (file,) = files
    assert (file.old, file.new) == ("x.py", "x.py")
    carried = {line: file.new_line(line) for line in range(1, len(old) + 1)}
    kept = {line: there for line, there in carried.items() if there is not None}
    assert all(old[line - 1] == new[there - 1] for line, there in kept.items())
    assert sorted(kept.values()) == list(kept.values())
    # Every line of the new text was carried over or brought by an edit, never both.
    brought = {line for line in range(1, len(new) + 1) if file.edit_of_new(line)}
    assert brought | set(kept.values()) == set(range(1, len(new) + 1))
    assert not brought & set(kept.values())
    assert all((there is None) == (file.edit_of_old(line) is not None) for line, there in carried.items())


def test_what_git_says_of_files() -> None:
    text = """diff --git a/gone.py b/gone.py
deleted file mode 100644
--- a/gone.py
+++ /dev/null
@@ -1 +0,0 @@
-x
diff --git a/made.py b/made.py
new file mode 100644
--- /dev/null
+++ b/made.py
@@ -0,0 +1,2 @@
+x
+--- a/trap.py
diff --git a/old name.py b/new name.py
similarity index 90%
rename from old name.py
rename to new name.py
--- a/old name.py\t
+++ b/new name.py\t
@@ -2,2 +2,2 @@ def f():
 same
-was
+is
\\ No newline at end of file
diff --git a/moved.py b/there.py
similarity index 100%
rename from moved.py
rename to there.py
diff --git "a/\\303\\251.py" "b/\\303\\251.py"
--- "a/\\303\\251.py"
+++ "b/\\303\\251.py"
@@ -1 +1 @@
-x
+y
"""
    files = parse_diff(text)
    assert [(file.old, file.new) for file in files] == [
        ("gone.py", None),
        (None, "made.py"),
        ("old name.py", "new name.py"),
        ("moved.py", "there.py"),
    ]
    gone, made, renamed, moved = files
    assert gone.new_line(1) is None and gone.new_line(5) is None
    edit = made.edit_of_new(2)
    assert edit is not None and (edit.old_count, edit.new_count) == (0, 2)
    assert edit.hunk.text == "@@ -0,0 +1,2 @@\n+x\n+--- a/trap.py"
    assert (renamed.new_line(2), renamed.new_line(3), renamed.new_line(4)) == (2, None, 4)
    assert moved.new_line(17) == 17


@given(st.sets(st.integers(0, 100), max_size=8), st.sets(st.integers(0, 100), max_size=8))
def test_pairs_are_in_order_and_as_many_as_can_be(old: set[int], new: set[int]) -> None:
    pairs = align(old, new)
    assert len(pairs) == min(len(old), len(new))
    assert pairs.keys() <= old and set(pairs.values()) <= new
    assert [pairs[line] for line in sorted(pairs)] == sorted(pairs.values())


def test_the_nearest_positions_are_paired() -> None:
    assert align([10, 20], [12, 22]) == {10: 12, 20: 22}
    assert align([10, 20], [11, 15, 21]) == {10: 11, 20: 21}
    assert align([10, 15, 20], [19]) == {20: 19}
