"""How the difference between two harness folders is shown."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator.actions.harness_diff import diffs
from orchestrator.model import Drift, FileChange, Harness


def lines(folder: Path, ours: bytes, theirs: bytes | None, change: str = "modified") -> tuple[str, ...]:
    (folder / "a.txt").write_bytes(ours)
    files = (FileChange(path="a.txt", change=change, side="local"),)  # type: ignore[arg-type]
    drift = Drift(state="local_ahead", local=Harness(digest="d", files=()), remote=None, base=None, files=files)
    (found,) = diffs(drift, folder, {"a.txt": theirs})
    return found.lines


def test_a_changed_line_is_shown_with_both_versions(tmp_path: Path) -> None:
    assert {"-old", "+new", " same"} <= set(lines(tmp_path, b"same\nnew\n", b"same\nold\n"))


def test_a_version_that_did_not_come_is_not_taken_for_an_empty_file(tmp_path: Path) -> None:
    """One that is larger than a diff shows, or a link: nothing is said of its lines."""
    (only,) = lines(tmp_path, b"new\n", None)
    assert "too large to show, or a link" in only


@pytest.mark.parametrize("size", [60_000])
def test_long_files_that_differ_everywhere_do_not_take_minutes(tmp_path: Path, size: int) -> None:
    ours, theirs = (b"".join(b"%d\n" % (at * factor % 199) for at in range(size)) for factor in (7, 11))
    began = time.monotonic()
    (only,) = lines(tmp_path, ours, theirs)
    assert "60000 lines there" in only and time.monotonic() - began < 5
