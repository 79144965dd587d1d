"""A run's log is read from a byte offset on, once and whole, whatever happens to its file meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from evalhost import EvalHost, Line, wait_until
from hypothesis import given
from hypothesis import strategies as st

from remote_payload.agent import logfollow, runs
from remote_payload.agent.logfollow import Log, collapse


def rest(log: Log, whole: bool = False) -> bytes:
    """All that is there now."""
    found, more = b"", True
    while more:
        data, more = log.read(whole)
        found += data
    return found


def test_a_character_that_is_not_whole_yet_is_held_back_and_never_lost(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes("aü".encode()[:2])
    log = Log(str(path))
    assert (rest(log), log.offset) == (b"a", 1)
    with path.open("ab") as file:
        file.write("ü".encode()[1:] + "€".encode()[:2])
    assert (rest(log), log.offset) == ("ü".encode(), 3)
    assert rest(log, whole=True) == "€".encode()[:2], "the run has ended: what never became whole is shown all the same"


@pytest.mark.parametrize("broken", [b"\xff\xfe text", b"\xc3(", b"\x80\x80\x80\x80"])
def test_bytes_that_are_no_utf_8_hold_nothing_up(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(broken)
    assert rest(Log(str(path))) == broken


def test_a_truncated_log_is_read_from_its_start_also_when_it_has_grown_past_the_offset(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\n" * 50)
    log = Log(str(path))
    rest(log)
    path.write_bytes(b"again\n")
    assert rest(log) == b"again\n" and log.notes == ["the log was cut; from its start"]
    log.notes.clear()
    path.write_bytes(b"longer than what was there before\n")
    assert rest(log) == b"longer than what was there before\n" and log.notes


def test_the_holes_of_a_truncated_log_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\0" * 1000 + b"new\n")
    assert rest(Log(str(path))) == b"new\n"


def test_a_rotated_log_is_read_to_its_end_before_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    log = Log(str(path))
    assert rest(log) == b"one\n"
    path.rename(tmp_path / "log.1")
    with (tmp_path / "log.1").open("ab") as old:
        old.write(b"two\n")
    path.write_bytes(b"three\n")
    assert rest(log) == b"two\n"
    assert rest(log) == b"three\n" and log.notes == ["the log was rotated; this is the new one"]


def test_another_connection_goes_on_at_the_place_even_after_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\n")
    first = Log(str(path))
    first.skip_to(4)
    place = first.place()
    assert rest(Log(str(path), place)) == b"two\n"
    path.rename(tmp_path / "log.1")
    path.write_bytes(b"three\n")
    second = Log(str(path), place)
    assert rest(second) + rest(second) == b"two\nthree\n"
    (tmp_path / "log.1").unlink()
    third = Log(str(path), place)
    assert rest(third) == b"three\n" and "replaced" in third.notes[0]


def test_a_place_from_before_the_log_is_its_start(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"))
    assert rest(log) == b""
    place = log.place()
    (tmp_path / "log").write_bytes(b"now\n")
    assert rest(log) == b"now\n"
    assert rest(Log(str(tmp_path / "log"), place)) == b"now\n"


def test_a_log_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "log").symlink_to(tmp_path / "secret")
    assert rest(Log(str(tmp_path / "log"))) == b""


@pytest.mark.parametrize(
    ("content", "count", "shown"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\n", 5, b"a\n"),
        (b"", 5, b""),
        (b"a\n" + b"x" * 200_000 + b"\nend\n", 2, b"x" * 200_000 + b"\nend\n"),
        (b"a\nb\n", 0, b""),
    ],
)
def test_the_last_lines_are_found(tmp_path: Path, content: bytes, count: int, shown: bytes) -> None:
    (tmp_path / "log").write_bytes(content)
    log = Log(str(tmp_path / "log"))
    log.skip_to_last_lines(count)
    assert rest(log) == shown


def test_the_last_lines_of_a_huge_log_are_looked_for_in_its_last_megabyte(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.truncate(1 << 32)
        file.seek(0, os.SEEK_END)
        file.write(b"\rbar")
    log = Log(str(tmp_path / "log"))
    log.skip_to_last_lines(10)
    assert log.offset == (1 << 32) + 4 - logfollow.LOOK_BACK


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"1%\r2%\r3%\n", b"\r3%\n"),
        (b"a\r\nb\r\n", b"a\r\nb\r\n"),
        (b"1%\r2%\r", b"\r2%\r"),
        (b"\r1%\r2%", b"\r2%"),
        (b"\r\r\r", b"\r"),
        (b"plain\n", b"plain\n"),
    ],
)
def test_overwritten_parts_of_a_line_are_left_out(raw: bytes, shown: bytes) -> None:
    assert collapse(raw) == shown


def terminal(text: bytes) -> list[bytes]:
    """The lines that a terminal would show where a new state replaces the line."""
    lines = []
    for line in text.split(b"\n"):
        states = [state for state in line.split(b"\r") if state]
        lines.append(states[-1] if states else b"")
    return lines


@given(st.lists(st.sampled_from([b"a", b"bc", b"\r", b"\n", b"\r\n"])), st.integers(1, 5))
def test_collapsing_piece_by_piece_shows_what_the_whole_would_show(words: list[bytes], size: int) -> None:
    raw, pieces = b"".join(words), b""
    for start in range(0, len(raw), size):
        pieces += collapse(raw[start : start + size])
    assert terminal(pieces) == terminal(collapse(raw)) == terminal(raw)


def test_a_progress_bar_without_line_ends_crosses_as_its_last_state(eval_host: EvalHost) -> None:
    code = "import sys\nsys.stdout.write(''.join('\\r%d/200000 it' % i for i in range(200000)))\n"
    code += "open(sys.argv[1], 'w').write('{}')"
    run_id = eval_host.launch(["{python}", "-c", code, "{result}"])["id"]
    eval_host.end(run_id)
    line = Line()
    args = {"workdir": str(eval_host.workdir), "id": run_id, "all": True}
    answer = runs.follow_answer(args, line)
    assert answer["place"]["offset"] == (eval_host.folder(run_id) / "log").stat().st_size > 2_000_000
    assert "".join(one["log"] for one in line.said) == "\r199999/200000 it" and len(line.said) == 1


def test_a_look_without_staying_ends_at_the_end_of_what_is_there(eval_host: EvalHost) -> None:
    code = "import time; print('one\\ntwo\\nthree', flush=True); time.sleep(60)"
    run_id = eval_host.launch(["{python}", "-c", code])["id"]
    wait_until(
        lambda: (eval_host.folder(run_id) / "log").exists() and (eval_host.folder(run_id) / "log").stat().st_size
    )
    line = Line()
    runs.follow_answer({"workdir": str(eval_host.workdir), "id": run_id, "lines": 2, "for": 0}, line)
    assert [one["log"] for one in line.said] == ["two\nthree\n"]
