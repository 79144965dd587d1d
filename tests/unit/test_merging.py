"""The three-way merge of a text file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.merging import has_markers, is_text, merge

TEXTS = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\r\n", b"\n", "é\n".encode()]), max_size=8).map(b"".join)
TEXTS = st.builds(lambda text, end: text + end, TEXTS, st.sampled_from([b"", b"no newline"]))


def merged(base: bytes, ours: bytes, theirs: bytes) -> tuple[bytes, int]:
    found = merge(base, ours, theirs, ours_name="here", theirs_name="there")
    return found.text, found.conflicts


@given(TEXTS, TEXTS)
def test_what_one_side_alone_did_is_taken_as_it_is(base: bytes, edited: bytes) -> None:
    assert merged(base, edited, base) == (edited, 0)
    assert merged(base, base, edited) == (edited, 0)
    assert merged(base, edited, edited) == (edited, 0)


@given(TEXTS, TEXTS, TEXTS)
def test_a_conflict_is_marked_and_loses_no_line_of_either_side(base: bytes, ours: bytes, theirs: bytes) -> None:
    text, conflicts = merged(base, ours, theirs)
    assert bool(conflicts) == has_markers(text)
    if conflicts:
        for side in (ours, theirs):
            kept = text.splitlines()
            for line in side.splitlines():
                if line not in base.splitlines():
                    assert line in kept
    assert merged(base, theirs, ours)[1] == conflicts


def test_edits_of_different_places_come_together() -> None:
    base = b"".join(b"line %d\n" % number for number in range(9))
    ours, theirs = base.replace(b"line 1", b"mine"), base.replace(b"line 7", b"theirs") + b"end\n"
    text, conflicts = merged(base, ours, theirs)
    assert conflicts == 0 and b"mine\n" in text and b"theirs\n" in text and text.endswith(b"end\n")


def test_edits_of_one_place_stand_between_markers() -> None:
    text, conflicts = merged(b"a\nb\nc", b"a\nmine\nc", b"a\ntheirs\nc")
    assert conflicts == 1
    assert text == b"a\n<<<<<<< here\nmine\n=======\ntheirs\n>>>>>>> there\nc"


@pytest.mark.parametrize("seed", range(12))
def test_where_git_merges_cleanly_so_do_we_and_to_the_same_text(tmp_path: Path, seed: int) -> None:
    base = [b"line %d\n" % number for number in range(30)]
    ours, theirs = list(base), list(base)
    ours[seed : seed + 2] = [b"mine\n", b"more\n"]
    theirs[20 - seed : 21 - seed] = []
    files = []
    for name, lines in (("ours", ours), ("base", base), ("theirs", theirs)):
        (tmp_path / name).write_bytes(b"".join(lines))
        files.append(name)
    done = subprocess.run(["git", "merge-file", "-p", *files], cwd=tmp_path, capture_output=True)
    text, conflicts = merged(*(b"".join(lines) for lines in (base, ours, theirs)))
    assert bool(conflicts) == bool(done.returncode)
    if not conflicts:
        assert text == done.stdout


def test_what_is_no_text_is_not_merged() -> None:
    assert is_text(b"", b"a\n") and not is_text(b"a\0b") and not is_text(b"\xff") and not is_text(b"\n" * 20_000)
