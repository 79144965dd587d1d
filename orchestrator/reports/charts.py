"""The three drawings of a report: the headline over steps, accuracy by position, tree drafting over steps."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TypeGuard

from orchestrator.amounts import decimal
from orchestrator.reports import plot
from orchestrator.reports.plot import Frame, Pair
from orchestrator.reports.text import shown
from orchestrator.workflows.report import Point, Position, Report

SIZES = (("narrow", 400, 270), ("middle", 680, 300), ("wide", 1000, 340))
"""class, width, height: page.css shows the one that fits"""
HALF_SIZES = (("half narrow", 370, 280), ("half wide", 500, 310))
LARGEST = 1e12
WALK = "acceptance_length.walk_macro"
TREE_CLASSES = ("tree1", "tree2", "tree3", "tree4")


def headline_title(name: str) -> str:
    """What a headline is called on an axis, escaped."""
    known = {WALK: "Acceptance length", "acceptance_length.pooled": "Acceptance length, pooled"}
    return known.get(name) or html.escape(shown(name, 60)) or "Headline"


# -- the headline over steps -----------------------------------------------------------------------------------------


def curve(report: Report, summary: str) -> str:
    """The headline with its interval over steps, in each size; empty where no result has one."""
    if not _drawn(report.points):
        return ""
    return "".join(_curve(report, summary, size) for size in SIZES)


def _curve(report: Report, summary: str, size: tuple[str, int, int]) -> str:
    name, width, height = size
    drawn = _drawn(report.points)
    fair = [point for point in drawn if point.comparable]
    other = [point for point in drawn if not point.comparable]
    frame = Frame(width=width, height=height, xs=_steps(report.points), ys=_headlines(report), right=74, top=30)
    titles = "step", headline_title(report.headline_name)
    parts = [plot.axes(frame, *titles, x_ticks=width // 120, y_ticks=height // 55)]
    labels = []
    if (base := fair[-1].entry.baseline if fair else None) is not None and _fits(base.value):
        ends = (frame.xs[0], frame.xs[1])
        if _fits(base.low) and _fits(base.high):
            parts.append(plot.band(frame, [(x, base.low, base.high) for x in ends], "base"))
        parts.append(plot.level(frame, base.value, "base"))
        labels.append((base.value, "baseline", "base"))
    rows = [_interval(point) for point in fair]
    known = [row for row in rows if row is not None]
    parts.append(plot.band(frame, known, "ours") if len(known) > 1 else plot.whiskers(frame, known, "ours"))
    parts.append(plot.dots(frame, [_at(point) for point in other], "other"))
    parts.append(plot.line(frame, [_at(point) for point in fair], "ours"))
    if len(fair) <= width // 12:
        parts.append(plot.dots(frame, [_at(point) for point in fair], "ours"))
    if fair:
        labels.append((_at(fair[-1])[1], decimal(_at(fair[-1])[1]), "ours"))
    parts.append(plot.end_labels(frame, labels))
    return _svg(frame, f"curve {name}", summary, "".join(parts), cursor=True)


def _steps(points: Sequence[Point]) -> Pair:
    steps = [point.entry.step for point in points]
    return plot.padded(steps, 0.5 if len(set(steps)) == 1 else 0.015)


def _headlines(report: Report) -> Pair:
    values = []
    for point in _drawn(report.points):
        for estimate in (point.entry.headline, point.entry.baseline if point is report.latest else None):
            if estimate is not None:
                values += [each for each in (estimate.value, estimate.low, estimate.high) if _fits(each)]
    return plot.padded(values)


def _fits(value: float | None) -> TypeGuard[float]:
    return value is not None and abs(value) < LARGEST


def _drawn(points: Sequence[Point]) -> list[Point]:
    """Those with a headline that a drawing can hold: what is larger is no measure of anything."""
    return [point for point in points if point.entry.headline and _fits(point.entry.headline.value)]


def _at(point: Point) -> Pair:
    assert point.entry.headline is not None
    return point.entry.step, point.entry.headline.value


def _interval(point: Point) -> tuple[float, float, float] | None:
    estimate = point.entry.headline
    if estimate is None or not _fits(estimate.low) or not _fits(estimate.high):
        return None
    return point.entry.step, estimate.low, estimate.high


# -- accuracy by position ----------------------------------------------------------------------------------------------


def positions(report: Report) -> str:
    """Survival by position: the latest, the first that can be compared with it, and the baseline; empty without any."""
    return "".join(_positions(report, size) for size in HALF_SIZES)


def _positions(report: Report, size: tuple[str, int, int]) -> str:
    chosen = [
        ("first", _first(report).ours.positions),
        ("base", report.latest.baseline.positions),
        ("ours", report.latest.ours.positions),
    ]
    last = max((row.k for _, rows in chosen for row in rows), default=0)
    if not last:
        return ""
    name, width, height = size
    frame = Frame(width=width, height=height, xs=(1, max(last, 2)), ys=(0, 1), right=22, top=32)
    parts = [plot.axes(frame, "position in the block", "share of drafts", x_ticks=8, whole=True)]
    for kind, rows in chosen:
        points = plot.runs_of((row.k, row.survival) for row in rows)
        parts.append(f'<path class="line {kind}" d="{"".join(plot.path(frame, stretch) for stretch in points)}"/>')
    summary = f"Share of drafts that are right up to each position: {_spoken(report.latest.ours.positions)}"
    return _svg(frame, f"positions {name}", summary, "".join(parts))


def _spoken(rows: Sequence[Position]) -> str:
    known = [f"{row.k}: {row.survival:.2f}" for row in rows if row.survival is not None]
    return ", ".join(known[:16])


def _first(report: Report) -> Point:
    return next((point for point in report.points if point.comparable), report.latest)


# -- tree drafting ---------------------------------------------------------------------------------------------------


def budgets(report: Report) -> list[int]:
    """Node budgets that the comparable results were measured with."""
    return sorted({budget for point in report.points if point.comparable for budget in point.ours.trees})


def trees(report: Report) -> str:
    """Acceptance length with draft trees of each budget over steps, beside the plain walk; empty without any."""
    return "".join(_trees(report, size) for size in HALF_SIZES)


def _trees(report: Report, size: tuple[str, int, int]) -> str:
    fair = [point for point in report.points if point.comparable]
    known = budgets(report)[: len(TREE_CLASSES)]
    if not known:
        return ""
    curves: list[tuple[str, str, list[tuple[float, float | None]], float | None]] = []
    if report.headline_name == WALK:
        walk = [(point.entry.step, _at(point)[1]) for point in _drawn(fair)]
        base = fair[-1].entry.baseline
        curves.append(("no tree", "ours", list(walk), base.value if base and _fits(base.value) else None))
    for budget, kind in zip(known, TREE_CLASSES, strict=False):
        lengths = [(point.entry.step, point.ours.trees.get(budget)) for point in fair]
        curves.append((f"{budget}", kind, list(lengths), fair[-1].baseline.trees.get(budget)))
    values = [value for _, _, row, base in curves for value in (*(y for _, y in row), base) if value is not None]
    kind_of_size, width, height = size
    frame = Frame(width=width, height=height, xs=_steps(fair), ys=plot.padded(values), right=70, top=30)
    parts = [plot.axes(frame, "step", "Acceptance length", x_ticks=4)]
    labels = []
    for name, kind, row, base_value in curves:
        if base_value is not None:
            parts.append(plot.level(frame, base_value, f"{kind} dashed"))
        stretches = list(plot.runs_of(row))
        parts += [plot.line(frame, stretch, kind) for stretch in stretches]
        if len(row) <= 40:
            parts += [plot.dots(frame, stretch, kind) for stretch in stretches]
        if stretches:
            labels.append((stretches[-1][-1][1], name, kind))
    parts.append(plot.end_labels(frame, labels))
    latest = ", ".join(f"budget {budget}: {decimal(length)}" for budget, length in fair[-1].ours.trees.items())
    return _svg(frame, f"trees {kind_of_size}", f"At step {fair[-1].entry.step}: {latest}", "".join(parts), cursor=True)


def _svg(frame: Frame, kind: str, summary: str, inside: str, *, cursor: bool = False) -> str:
    """`cursor`: with the marks that the script moves over the steps."""
    moving = '<path class="hair" d=""/><path class="ring" d=""/>' if cursor else ""
    return (
        f'<svg class="{kind}" viewBox="0 0 {frame.width} {frame.height}" role="img" {frame.attributes()}>'
        f"<title>{html.escape(summary)}</title>{inside}{moving}</svg>"
    )
