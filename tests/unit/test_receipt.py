"""The receipt's verdict over windows of samples."""

from typing import Any

import pytest

from orchestrator.actions.training import window
from orchestrator.receipts import receipt


def sample(minute: int, pid: int | None = 7, state: str = "running", step: int = 0) -> dict[str, Any]:
    identity = {"incarnation": "b", "pid": pid, "start_ticks": 5} if pid else None
    at = f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00Z"
    return {"at": at, "pid": pid, "state": state, "started_at": "then", "identity": identity, "step": step}


CASES = {
    "same process throughout": ([(0, 7), (1, 7), (60, 7), (60, 7)], "undisturbed"),
    "died inside a window": ([(0, 7), (1, None), (60, None), (60, None)], "changed"),
    "replaced inside a window": ([(0, 7), (1, 8)], "changed"),
    "gone within a minute after a window": ([(0, 7), (1, 7), (2, None), (2, None)], "changed"),
    "gone an hour after a window": ([(0, 7), (1, 7), (61, None), (61, None)], "ended"),
    "restarted an hour after a window": ([(0, 7), (1, 7), (61, 8), (61, 8)], "ended"),
    "never seen": ([(0, None), (1, None)], "not_observed"),
}


@pytest.mark.parametrize("name", CASES)
def test_verdicts(name: str) -> None:
    moments, verdict = CASES[name]
    samples = [sample(minute, pid, "running" if pid else "absent") for minute, pid in moments]
    windows = [window("ship", "box", a, b) for a, b in zip(samples[::2], samples[1::2], strict=True)]
    assert receipt(windows).verdict == verdict


def test_a_training_stopped_inside_a_window_is_changed_and_said() -> None:
    found = receipt([window("ship", "box", sample(0), sample(1, state="stopped"))])
    assert found.verdict == "changed"
    assert "went from running to stopped" in found.reasons[0]


def test_a_box_that_could_not_be_looked_at_afterwards_is_called_neither_undisturbed_nor_changed() -> None:
    assert receipt([window("ship", "box", sample(0), None)]).verdict == "not_observed"


def test_an_undisturbed_training_names_its_steps() -> None:
    found = receipt([window("ship", "box", sample(0, step=100), sample(1, step=140))])
    assert "step 100 to 140" in found.reasons[0]


@pytest.mark.parametrize("state", ["hidden", "ambiguous", None])
@pytest.mark.parametrize("at", [1, 2])
def test_a_look_that_could_not_see_the_process_accuses_nobody(state: str | None, at: int) -> None:
    """The box was unreachable, /proc hid the process, or a second one matched: nobody knows whether it ended."""
    samples = [sample(minute) for minute in range(4)]
    samples[at] = sample(at, None, state=state)  # type: ignore[arg-type]
    windows = [window("ship", "box", *samples[:2]), window("collect", "box", *samples[2:])]
    assert receipt(windows).verdict == "not_observed"


def test_a_box_that_can_not_be_reached_at_the_end_is_not_observed() -> None:
    found = receipt([window("ship", "box", sample(0), sample(1)), window("collect", "box", None, None)])
    assert found.verdict == "not_observed"


@pytest.mark.parametrize(("minute", "verdict"), [(2, "changed"), (70, "ended")])
def test_a_zombie_between_two_windows_has_ended(minute: int, verdict: str) -> None:
    """Nobody waited for it, as happens in containers: its number and start are still there, but it trains no more."""
    dead = sample(minute, state="zombie")
    found = receipt([window("ship", "box", sample(0), sample(1)), window("collect", "box", dead, dead)])
    assert found.verdict == verdict
