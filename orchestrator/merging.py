"""Three-way merge of one text file, line by line, as diff3 does it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

OURS, MIDDLE, THEIRS = b"<<<<<<< ", b"=======", b">>>>>>> "
LINES = 10_000
"""lines past which comparing takes seconds, and then minutes"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """One text out of two. With `conflicts`, both versions of each stand in it between markers."""

    text: bytes
    conflicts: int


def is_text(*versions: bytes) -> bool:
    """Whether all of these are UTF-8 without NUL, and short enough to be compared line by line."""
    for version in versions:
        if b"\0" in version or version.count(b"\n") > LINES:
            return False
        try:
            version.decode("utf-8")
        except UnicodeDecodeError:
            return False
    return True


def has_markers(text: bytes) -> bool:
    """Whether a conflict stands in a text, unresolved."""
    return any(line.startswith((OURS, THEIRS)) for line in text.splitlines())


def merge(base: bytes, ours: bytes, theirs: bytes, *, ours_name: str, theirs_name: str) -> Merged:
    """What both sides made of `base`: a change of one side is taken, the same change of both once, others conflict."""
    merged: list[bytes] = []
    conflicts = 0
    versions = [text.splitlines(keepends=True) for text in (base, ours, theirs)]
    for was, here, there in _regions(*versions):
        if here == there or there == was:
            merged += here
        elif here == was:
            merged += there
        else:
            conflicts += 1
            merged += _conflict(here, there, ours_name, theirs_name)
    return Merged(text=b"".join(merged), conflicts=conflicts)


Lines = Sequence[bytes]


def _regions(base: Lines, ours: Lines, theirs: Lines) -> Iterator[tuple[Lines, Lines, Lines]]:
    """All three texts cut at the same places: a piece in which all agree, a piece in which they may not, in turn."""
    at_base = at_ours = at_theirs = 0
    for in_base, in_ours, in_theirs, size in _agreeing(base, ours, theirs):
        yield base[at_base:in_base], ours[at_ours:in_ours], theirs[at_theirs:in_theirs]
        at_base, at_ours, at_theirs = in_base + size, in_ours + size, in_theirs + size
        yield (base[in_base:at_base],) * 3


def _agreeing(base: Lines, ours: Lines, theirs: Lines) -> Iterator[tuple[int, int, int, int]]:
    """Where a stretch of lines is the same in all three: its start in each, and its length; the last one is empty."""
    import difflib  # only a merge needs it, and `orch status` reads this module

    mine = difflib.SequenceMatcher(None, base, ours, autojunk=False).get_matching_blocks()
    others = difflib.SequenceMatcher(None, base, theirs, autojunk=False).get_matching_blocks()
    here = there = 0
    while here < len(mine) and there < len(others):
        one, two = mine[here], others[there]
        start, end = max(one.a, two.a), min(one.a + one.size, two.a + two.size)
        if start < end:
            yield start, one.b + start - one.a, two.b + start - two.a, end - start
        if one.a + one.size < two.a + two.size:
            here += 1
        else:
            there += 1
    yield len(base), len(ours), len(theirs), 0


def _conflict(here: Lines, there: Lines, ours_name: str, theirs_name: str) -> list[bytes]:
    """Both versions between markers, without the lines that both begin or end with."""
    head = _same(here, there)
    tail = _same(here[head:][::-1], there[head:][::-1])
    ours, theirs = here[head : len(here) - tail], there[head : len(there) - tail]
    return [
        *here[:head],
        OURS + ours_name.encode() + b"\n",
        *_ended(ours),
        MIDDLE + b"\n",
        *_ended(theirs),
        THEIRS + theirs_name.encode() + b"\n",
        *here[len(here) - tail :],
    ]


def _same(one: Lines, other: Lines) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


def _ended(lines: Lines) -> list[bytes]:
    """The same lines, the last one with its newline: a marker stands on a line of its own."""
    return [line if line.endswith((b"\n", b"\r")) else line + b"\n" for line in lines]
