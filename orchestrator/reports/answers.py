"""What `orch results` and `orch compare` print: lines, JSON and CSV. Without rich: they have a fraction of a second."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from json.encoder import encode_basestring_ascii as quoted
from math import isfinite
from typing import TYPE_CHECKING, Any

import click

from orchestrator.amounts import decimal
from orchestrator.measured import Entry, Estimate
from orchestrator.reports.curve import sparkline
from orchestrator.reports.envelope import Document, Written, digests_body, estimate_body
from orchestrator.reports.text import LIMIT, figure, interval, shown

if TYPE_CHECKING:
    from orchestrator.workflows.compare import CompareReport, Side
    from orchestrator.workflows.results import Series

LAST = 10
"""results of one curve in a table; documents hold all"""
COLOURS = {"undisturbed": "green", "better": "green", "worse": "red", "changed": "red"}
WORDS = {"no_difference": "no difference shown", None: "-"}


# -- results -------------------------------------------------------------------------------------------------------


ROW = (
    '{"id": %s, "run": %s, "job": %s, "host": %s, "origin": %s, "step": %d, "headline": %s, "baseline": %s, '
    '"verdict": %s, "digests": {"checkpoint": %s, "harness": %s, "job": %s, "data": %s}, "receipt": %s, "ended_at": %s}'
)
"""a result as JSON; filled in, it is there in a third of the time that `json` takes for it"""


def results_body(found: Sequence[Series]) -> Document:
    """CONTRACT's `results`."""
    return {"results": Written(_row(entry) for series in found for entry in series.entries)}


def _row(entry: Entry) -> str:
    (id, host, run, job, origin, step, ended, name, _, value, low, high, base, base_low, base_high, *rest) = entry
    verdict, receipt, checkpoint, harness, job_digest, data = map(_text, rest)
    return ROW % (
        *(quoted(id), quoted(run), quoted(job), quoted(host), quoted(origin), step),
        "null" if value is None else f'{{"name": {quoted(name)}, {_numbers(value, low, high)}}}',
        "null" if base is None else f"{{{_numbers(base, base_low, base_high)}}}",
        *(verdict, checkpoint, harness, job_digest, data, receipt, quoted(ended)),
    )


def _numbers(value: float, low: float | None, high: float | None) -> str:
    """The inside of CONTRACT's {value, low, high}."""
    return f'"value": {_number(value)}, "low": {_number(low)}, "high": {_number(high)}'


def _text(value: str | None) -> str:
    return "null" if value is None else quoted(value)


def _number(value: float | None) -> str:
    return "null" if value is None or not isfinite(value) else repr(value)


RESULT_COLUMNS = (
    *("id", "run", "job", "host", "step", "headline_name", "value", "low", "high", "baseline", "verdict", "receipt"),
    *("checkpoint", "harness", "job_digest", "data", "ended_at"),
)


def results_csv(found: Sequence[Series]) -> str:
    """One line a result, under RESULT_COLUMNS."""
    return _csv(RESULT_COLUMNS, (_cells(entry) for series in found for entry in series.entries))


def _cells(entry: Entry) -> list[object]:
    return [
        *(entry.id, entry.run, entry.job, entry.host, entry.step, entry.headline_name),
        *(entry.value, entry.low, entry.high, entry.base_value, entry.verdict, entry.receipt),
        *(entry.checkpoint, entry.harness, entry.job_digest, entry.data, entry.ended_at),
    ]


def results_lines(found: Sequence[Series], *, unicode: bool) -> Iterator[str]:
    """A block for each curve: what it is, how it went, and its newest results."""
    for index, series in enumerate(found):
        if index:
            yield ""
        latest = series.latest
        yield click.style(
            shown(f"{latest.run}  {latest.headline_name or 'no headline'}  (job {latest.job})"), bold=True
        )
        yield from _curve(series, unicode=unicode)
        yield from table(
            ("step", "headline", "", "baseline", "verdict", "training", "ended", "run", ""),
            [_table_row(entry, latest) for entry in series.entries],
        )
        if series.count > len(series.entries):
            yield f"... and {series.count - len(series.entries)} earlier ones: --last N, --json or --csv"


def _curve(series: Series, *, unicode: bool) -> Iterator[str]:
    values = series.values
    if len(values) > 1:
        line = sparkline(values, unicode=unicode)
        steps = f"step {series.first_step} to {series.latest.step}"
        yield f"{line}  {decimal(min(values))} to {decimal(max(values))}, {steps}"


def _table_row(entry: Entry, latest: Entry) -> tuple[str, ...]:
    mark = "" if entry.same_measure(latest) else "other " + _what_differs(entry, latest)
    return (
        str(entry.step),
        figure(entry.headline),
        interval(entry.headline),
        figure(entry.baseline),
        entry.verdict or "-",
        entry.receipt,
        entry.ended_at,
        entry.id,
        mark,
    )


def _what_differs(one: Entry, other: Entry) -> str:
    return " and ".join(name for name in ("harness", "data") if getattr(one, name) != getattr(other, name))


# -- compare -------------------------------------------------------------------------------------------------------


def compare_body(report: CompareReport) -> Document:
    """CONTRACT's `compare`."""
    found = report.difference
    return {
        "a": _side_body(report.a),
        "b": _side_body(report.b),
        "items": found.items,
        "difference": estimate_body(found.estimate),
        "verdict": found.verdict,
        "mixed": bool(report.mixed),
        "needed_items": found.needed_items,
    }


def _side_body(side: Side) -> Document:
    return {
        "id": side.entry.id,
        "baseline": side.is_baseline,
        "run": side.entry.run,
        "step": None if side.is_baseline else side.entry.step,
        "headline": estimate_body(side.headline),
        "digests": digests_body(side.entry.digests),
    }


COMPARE_COLUMNS = ("a", "b", "items", "difference", "low", "high", "verdict", "mixed", "needed_items")


def compare_csv(report: CompareReport) -> str:
    """One line under COMPARE_COLUMNS."""
    found = report.difference
    names = [f"baseline:{side.entry.id}" if side.is_baseline else side.entry.id for side in (report.a, report.b)]
    estimate = found.estimate or Estimate(value=float("nan"))
    numbers = [estimate.value if found.estimate else None, estimate.low, estimate.high]
    row = [*names, found.items, *numbers, found.verdict, str(bool(report.mixed)).lower(), found.needed_items]
    return _csv(COMPARE_COLUMNS, [row])


def compare_lines(report: CompareReport) -> Iterator[str]:
    """Both headlines, their difference, and what it says."""
    rows = []
    for name, side in (("a", report.a), ("b", report.b)):
        rows.append((name, side.label, figure(side.headline), interval(side.headline)))
    found = report.difference
    if found.estimate is not None and found.items:
        rows.append(
            ("a - b", f"over {found.items} shared items", figure(found.estimate, "+"), interval(found.estimate, "+"))
        )
    yield from table(("", shown(report.a.entry.headline_name), "", ""), rows)
    yield "verdict: " + click.style(sentence(report), fg=COLOURS.get(found.verdict or ""), bold=True)
    if report.mixed:
        yield click.style(f"mixed: they were measured with {' and '.join(report.mixed)}", fg="yellow")


def sentence(report: CompareReport) -> str:
    """The verdict in words, with how many items would settle it."""
    found = report.difference
    if found.verdict is None:
        return "nothing can be said: fewer than two shared items"
    if found.verdict != "no_difference":
        return f"a is {found.verdict} than b"
    if found.needed_items is None:
        return "no difference shown"
    return f"no difference shown; about {found.needed_items} items would settle one of this size"


# -- both ----------------------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as what is in them; words that have a colour get it."""
    safe = [[shown(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *safe, strict=True)]
    yield click.style("  ".join(map(str.ljust, head, widths)).rstrip(), dim=True)
    for row in safe:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        line = [
            click.style(cell, fg=COLOURS[word]) if word in COLOURS else cell
            for cell, word in zip(padded, row, strict=True)
        ]
        yield "  ".join(line).rstrip()


def _csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_inert(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return out.getvalue()


def _inert(text: str) -> str:
    """Text that no spreadsheet takes for a formula: one that begins as such gets an apostrophe in front."""
    if text.isalnum() and len(text) <= LIMIT:
        return text
    return ("'" if text.startswith(("=", "+", "-", "@")) else "") + shown(text)
