"""What a person sees of a running evaluation, whatever the evaluation writes into its progress file."""

from __future__ import annotations

import io
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
