"""What a report's script reads: the points as JSON inside the page."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from typing import Any

from orchestrator.model import Estimate
from orchestrator.reports import charts
from orchestrator.reports.markup import WORDS, short
from orchestrator.reports.text import shown
from orchestrator.workflows.report import Measured, Point, Report

REASON = 300
"""characters of a receipt's reason, and of a list of versions"""


def data(report: Report) -> str:
    """The points as JSON that may stand inside a script element."""
    reasons, versions, harnesses, datas = (_Numbered() for _ in range(4))
    points = [_point(point, reasons, versions, harnesses, datas) for point in report.points]
    document = {
        "headline": html.unescape(charts.headline_title(report.headline_name)),
        "walk": report.headline_name == charts.WALK,
        "points": points,
        "base_positions": _positions(report.latest.baseline),
        "reasons": reasons.names,
        "versions": versions.names,
        "harnesses": harnesses.names,
        "datas": datas.names,
    }
    text = json.dumps(document, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class _Numbered:
    """Texts that many points share, each once."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)


def _point(
    point: Point, reasons: _Numbered, versions: _Numbered, harnesses: _Numbered, datas: _Numbered
) -> dict[str, Any]:
    entry, ours, base = point.entry, point.entry.headline, point.entry.baseline
    said = "; ".join(point.receipt.reasons) if point.receipt else "its file could not be read"
    libraries = ", ".join(f"{name} {version}" for name, version in sorted(point.versions.items()))
    return {
        "step": entry.step,
        **dict(zip(("value", "low", "high"), _numbers(ours), strict=True)),
        **dict(zip(("base", "base_low", "base_high"), _numbers(base), strict=True)),
        "verdict": entry.verdict,
        "receipt": WORDS.get(entry.receipt, entry.receipt),
        "reason": reasons(shown(said, REASON)),
        "version": versions(shown(libraries, REASON)),
        "ended": shown(entry.ended_at, 40),
        "host": shown(entry.host, 80),
        "id": shown(entry.id, 80),
        "checkpoint": short(entry.digests.checkpoint),
        "harness": harnesses(short(entry.digests.harness)),
        "data": datas(short(entry.digests.data)),
        "same": point.comparable,
        "positions": _positions(point.ours),
        "trees": {str(budget): round(length, 4) for budget, length in point.ours.trees.items()},
    }


def _numbers(estimate: Estimate | None) -> tuple[float | None, float | None, float | None]:
    if estimate is None:
        return None, None, None
    low, high = estimate.low, estimate.high
    return round(estimate.value, 4), None if low is None else round(low, 4), None if high is None else round(high, 4)


def _positions(measured: Measured) -> dict[str, list[float | int | None]] | None:
    rows = measured.positions
    if not rows:
        return None

    def column(values: Iterable[float | None]) -> list[float | int | None]:
        return [None if value is None else round(value, 3) for value in values]

    return {
        "k": [row.k for row in rows],
        "marginal": column(row.marginal for row in rows),
        "survival": column(row.survival for row in rows),
        "conditional": column(row.conditional for row in rows),
    }
