"""What a person sees of a running evaluation, whatever the evaluation writes into its progress file."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from orchestrator.reports.live import Live


def screen(progress: Any, *, terminal: bool) -> str:
    out = io.StringIO()
    live = Live(Console(file=out, force_terminal=terminal, color_system=None, width=80), quiet=False)
    live._said = -1e9  # as if the last line had been long ago
    live.looked({"state": "running", "progress": progress})
    live.close()
    return out.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1, 10**400, "7", [], {}, None])
def test_a_count_that_is_none_is_not_shown(number: Any, terminal: bool) -> None:
    said = screen({"done": number, "total": number}, terminal=terminal)
    assert "running, followed for" in said and "/" not in said


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("key", ["done", "total", "phase"])
def test_no_escape_sequence_reaches_the_terminal(key: str, terminal: bool) -> None:
    assert "\x1b]0;" not in screen({"done": 1, "total": 2, key: "\x1b]0;title\x07"}, terminal=terminal)


def test_a_count_is_shown() -> None:
    assert "prompts 3/8" in screen({"done": 3, "total": 8, "phase": "prompts"}, terminal=False)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that programs see, to be moved by hand."""
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_without_a_terminal_shipping_is_one_line_each_ten_seconds_with_bytes_rate_and_time_left(
    clock: list[float],
) -> None:
    out = io.StringIO()
    live = Live(Console(file=out, force_terminal=False, width=200), quiet=False)
    for second in range(25):
        live.moved(40_000_000 + 2_000_000 * second, 100_000_000)  # 40 MB were there already
        clock[0] += 1
    live.moved(100_000_000, 100_000_000)
    lines = out.getvalue().splitlines()
    assert len(lines) == 3, lines
    assert lines[0].startswith("shipping 60 MB of 100 MB, 2 MB/s, 20 s left")
    assert "100" in lines[-1] and "left" not in lines[-1]


def test_what_is_shipped_at_once_is_one_line_without_a_rate(clock: list[float]) -> None:
    out = io.StringIO()
    live = Live(Console(file=out, force_terminal=False, width=200), quiet=False)
    live.moved(1100, 1100)
    live.moved(1100, 1100)
    assert out.getvalue() == "shipping 1.1 kB of 1.1 kB\n"


def test_at_a_terminal_shipping_is_a_bar_with_bytes_rate_and_time_left(clock: list[float]) -> None:
    out = io.StringIO()
    live = Live(Console(file=out, force_terminal=True, color_system=None, width=120), quiet=False)
    for second in range(6):
        live.moved(2_000_000 * second, 100_000_000)
        clock[0] += 1
    live.close()
    last = next(line for line in reversed(out.getvalue().splitlines()) if "shipping" in line)
    assert re.search(r"10\.0/100\.0 MB +[\d.]+ .?B/s +\d:\d\d:\d\d", last), last
