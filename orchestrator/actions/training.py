"""The receipt: what the training process looked like before and after each stretch in which orch acted on its box."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, Literal

from orchestrator.actions.observation import RunFacts
from orchestrator.model import Receipt

AFTERMATH = 60.0
"""seconds after a window in which a training that dies counts against it"""
GONE = ("absent", "zombie")
"""states of a process that has ended; `ambiguous`, `hidden` or none at all say nothing about it"""
Window = dict[str, Any]
Verdict = Literal["undisturbed", "changed", "ended", "not_observed"]


def window(
    doing: Literal["observe", "ship", "collect"], host: str, before: Window | None, after: Window | None
) -> Window:
    """One window between two samples of the training process on one host."""
    return {
        "doing": doing,
        "host": host,
        "from": (before or after or {}).get("at"),
        "to": (after or before or {}).get("at"),
        "before": before,
        "after": after,
        "samples": [],
    }


def sample_of(facts: RunFacts) -> Window:
    """A sample from one look: identity, state and progress, with what the host measured besides."""
    process = facts.process or {}
    progress = facts.progress or {}
    sample = dict(facts.sample or {})
    sample.setdefault("at", datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"))
    sample.update(
        state=process.get("state"),
        pid=process.get("pid"),
        started_at=process.get("started_at"),
        identity=process.get("identity"),
        step=progress.get("step"),
        rate=progress.get("rate"),
    )
    return sample


def receipt(windows: Sequence[Window]) -> Receipt:
    """The verdict over all windows, in their order, with its reasons and limits.

    `changed` speaks of a window and of AFTERMATH behind it; a training that is gone later than that has `ended`.
    """
    verdict, reasons = _verdict(windows)
    return Receipt(verdict=verdict, reasons=(reasons,), windows=tuple(windows), limits=_limits(windows))


def _verdict(windows: Sequence[Window]) -> tuple[Verdict, str]:
    first = next((one["before"] for one in windows if _identity(one["before"])), None)
    if first is None:
        return "not_observed", "no training process was seen, so nothing can be said of it"
    earlier: Window | None = None
    for one in windows:
        if earlier is not None and not _observed(one["before"]):
            return "not_observed", f"before orch did `{one['doing']}` on {one['host']}: the process could not be seen"
        if earlier is not None and _identity(earlier["after"]) != _identity(one["before"]):
            return _gone_between(earlier, one)
        if _identity(one["before"]):
            doing = f"while orch did `{one['doing']}` on {one['host']}"
            if not _observed(one["after"]):
                return "not_observed", f"{doing}: the process could not be seen afterwards"
            if (change := _change(one["before"], one["after"])) is not None:
                return "changed", f"{doing}: {change}"
        earlier = one if _identity(one["before"]) else earlier
    assert earlier is not None
    last = earlier["after"]
    steps = f", step {first['step']} to {last['step']}" if None not in (first.get("step"), last.get("step")) else ""
    return "undisturbed", f"same process {first['pid']} since {first['started_at']}{steps}"


def _identity(sample: Window | None) -> object:
    """Of a process that lives: a zombie still has its number, but has ended."""
    return None if sample is None or sample.get("state") in GONE else sample.get("identity")


def _observed(sample: Window | None) -> bool:
    """Whether a look said what became of the process. One that failed, or that /proc hid, says nothing."""
    return _identity(sample) is not None or (sample or {}).get("state") in GONE


def _change(before: Window, after: Window) -> str | None:
    if after["identity"] != before["identity"]:
        if after["identity"] is None:
            return f"process {before['pid']} is {after['state'] or 'gone'}"
        return f"process {before['pid']} was replaced by {after['pid']}"
    if after["state"] != before["state"]:
        return f"process {before['pid']} went from {before['state']} to {after['state']}"
    return None


def _gone_between(earlier: Window, later: Window) -> tuple[Verdict, str]:
    quiet = _seconds(earlier["to"], later["from"])
    if quiet is not None and quiet <= AFTERMATH:
        return "changed", f"the process was gone {quiet:.0f} s after orch did `{earlier['doing']}`"
    return "ended", "training ended or was restarted by itself, while orch was not acting on its box"


def _limits(windows: Sequence[Window]) -> tuple[str, ...]:
    limits = ["speaks only of the windows in which orch acted on the training box"]
    hidden = sorted({name for w in windows for s in (w["before"], w["after"]) if s for name in s.get("hidden") or ()})
    if hidden:
        limits.append("the box hides: " + ", ".join(hidden))
    return tuple(limits)


def _seconds(start: str | None, end: str | None) -> float | None:
    if start is None or end is None:
        return None
    a, b = (datetime.fromisoformat(text.replace("Z", "+00:00")) for text in (start, end))
    return (b - a).total_seconds()
