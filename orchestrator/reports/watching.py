"""What `orch watch` prints: a line an event for people, an object an event for programs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from rich.text import Text

from orchestrator.clock import utc_now
from orchestrator.model import Estimate, Result
from orchestrator.reports.documents import checkpoint_body, measured_body
from orchestrator.reports.text import shown
from orchestrator.workflows.watch import WatchReport
from orchestrator.workflows.watch_scene import Event

STYLES = {
    "result": "green",
    "staged": "dim",
    "already": "dim",
    "failed": "red",
    "gone": "yellow",
    "torn": "yellow",
    "retry": "yellow",
    "refused": "red",
    "lost": "yellow",
    "warning": "yellow",
}
LIMIT = 500
"""characters of one line"""


def line(event: Event) -> Text:
    """One event as a line: local time, kind, sentence."""
    said = event.text if event.result is None else f"{event.text}: {_measured(event.result)}"
    clock = datetime.now().astimezone().strftime("%m-%d %H:%M:%S")
    text = Text(f"{clock}  ", style="dim")
    text.append(f"{event.kind:<9}", style=STYLES.get(event.kind, ""))
    text.append(shown(said, limit=LIMIT), style="" if event.kind != "result" else "bold")
    return text


def event_body(event: Event) -> dict[str, Any]:
    """One event as an object, without what every document has."""
    return {
        "event": event.kind,
        "at": utc_now(),
        "step": event.step,
        "text": event.text,
        "host": event.host or None,
        "checkpoint": checkpoint_body(event.checkpoint) if event.checkpoint else None,
        **measured_body(event.run, event.result),
    }


def end_body(report: WatchReport | None) -> dict[str, Any]:
    """The last object: how many of each event there were; none of a watch that was interrupted."""
    counts = report.counts if report is not None else None
    return {"event": "ended", "at": utc_now(), "step": None, "text": "", "counts": counts}


def _measured(result: Result) -> str:
    parts = [f"{result.headline_name or 'result'} {_number(result.headline)}"]
    if result.baseline is not None:
        parts.append(f"baseline {_number(result.baseline)}")
    if result.verdict is not None:
        parts.append(result.verdict.replace("_", " "))
    return ", ".join([*parts, f"training {result.receipt.verdict}", f"run {result.id}"])


def _number(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.4g}"
    return f"{estimate.value:.4g} [{estimate.low:.4g}, {estimate.high:.4g}]"
