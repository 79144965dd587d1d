"""A followed log as a person and as a program read it."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.model import Digests, Run
from orchestrator.reports import loglines
from orchestrator.reports.loglines import LONGEST, Lines, LogLines

RUN = Run(
    id="7-ab",
    job="j",
    host="box",
    run="r",
    step=7,
    state="succeeded",
    digests=Digests(checkpoint="c", harness="h", job="j", data="d"),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def look(text: str, offset: int = 0, **more: Any) -> dict[str, Any]:
    return {"log": text, "place": {"offset": offset}, "skipped": 0, "notes": [], "state": "running", **more}


def printed(*texts: str, out: io.StringIO | None = None, as_json: bool = False) -> tuple[str, str]:
    out, err = out or io.StringIO(), io.StringIO()
    log = LogLines(out, err, as_json=as_json)
    log.found(RUN)
    for text in texts:
        log.looked(look(text))
    log.ended(RUN)
    log.close()
    return out.getvalue(), err.getvalue()


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        (["a\nb", "c\n"], ["a", "bc"]),
        (["1%\r2", "%\r3%\n"], ["3%"]),
        (["1%", "\r", "2%\n"], ["2%"]),
        (["text\r\nmore\r", "\n"], ["text", "more"]),
        (["\n\n"], ["", ""]),
    ],
)
def test_a_carriage_return_lets_the_next_text_replace_the_line(pieces: list[str], lines: list[str]) -> None:
    cut = Lines()
    assert [line for piece in pieces for line in cut.feed(piece)] == lines


@given(st.lists(st.text("ab\r\n", max_size=6), max_size=8))
def test_where_a_text_is_cut_into_pieces_makes_no_difference(pieces: list[str]) -> None:
    once, whole = Lines(), Lines()
    assert [line for piece in pieces for line in once.feed(piece)] == list(whole.feed("".join(pieces)))
    assert once.unfinished == whole.unfinished


def test_a_line_without_end_takes_no_more_memory_than_is_shown() -> None:
    lines = Lines()
    for _ in range(100):
        assert list(lines.feed("x" * 10_000)) == []
    assert len(lines.unfinished) <= LONGEST + 1


def test_what_could_harm_a_terminal_is_escaped_and_colours_are_left_out() -> None:
    out, _ = printed("\x1b[31mred\x1b[0m \x1b]0;title\x07\tü\n")
    assert out == "red \\x1b]0;title\\x07        ü\n" or "\x1b" not in out
    assert "\x1b" not in out and "\x07" not in out and "red" in out and "ü" in out


def test_on_a_terminal_a_bar_is_redrawn_in_place() -> None:
    terminal = Terminal()
    out, _ = printed("10%", "\r20%", "\r30%\ndone\n", out=terminal)
    assert out == "10%" + "\r\x1b[K20%" + "\r\x1b[K30%\ndone\n"


def test_without_a_terminal_a_bar_is_said_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed("10%", "\r20%", "\r30%")[0] == "30%\n"
    monkeypatch.setattr(loglines, "EVERY", 0.0)
    assert printed("10%", "\r20%", "\r20%", "\r30%")[0] == "10%\n20%\n30%\n"


def test_for_programs_each_line_is_an_object() -> None:
    out, err = printed("one\ntwo\n", "bar", as_json=True)
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["text"], row["bar"], row["id"], row["command"]) for row in rows] == [
        ("one", False, "7-ab", "logs"),
        ("two", False, "7-ab", "logs"),
        ("bar", True, "7-ab", "logs"),
    ]
    assert err == ""


def test_what_happened_to_the_file_and_what_it_waits_for_is_said_beside_the_log() -> None:
    out, err = io.StringIO(), io.StringIO()
    log = LogLines(out, err, as_json=False)
    log.found(RUN)
    for _ in range(2):
        log.looked(look("", state="queued", reason="waits behind run 6-cd"))
    log.looked(look("x\n", notes=["the log was cut; from its start"], skipped=5))
    assert out.getvalue() == "x\n"
    assert err.getvalue().splitlines() == [
        "orch: queued: waits behind run 6-cd",
        "orch: the log was cut; from its start",
        "orch: 5 bytes were left out",
    ]
