"""A report as Markdown: a note to hand over, for an issue, a pull request or a chat."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.amounts import decimal
from orchestrator.reports.curve import sparkline
from orchestrator.reports.text import measured, shown
from orchestrator.workflows.report import Report

ROWS = 20
"""newest results in the table"""
WORDS = {"no_difference": "no difference shown", None: "-"}
_SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_{}[]<>()#+!|~"})


def markdown(report: Report) -> str:
    """The whole note."""
    return "\n".join(_lines(report)) + "\n"


def plain(text: str, limit: int = 120) -> str:
    """Foreign text for Markdown: escaped for terminals, cut, and with its markup taken away."""
    return shown(text, limit).translate(_SPECIAL)


def _lines(report: Report) -> Iterator[str]:
    latest = report.latest.entry
    yield f"# {plain(report.run)}: {plain(report.headline_name) or 'results'}"
    yield ""
    yield f"Step {latest.step}: **{measured(latest.headline)}**, job {plain(report.job)}, from {plain(report.origin)}."
    values = [point.entry.headline.value for point in report.points if point.comparable and point.entry.headline]
    if len(values) > 1:
        yield ""
        yield f"`{sparkline(values)}` {decimal(min(values))} to {decimal(max(values))} over {len(values)} results"
    if report.against:
        yield ""
        yield "| the latest against | difference | items | verdict |"
        yield "|---|---|---|---|"
        for against in report.against:
            found = against.difference
            needed = f" (about {found.needed_items} items would settle it)" if found.needed_items else ""
            verdict = WORDS.get(found.verdict, found.verdict)
            yield f"| {plain(against.what)} | {measured(found.estimate, '+')} | {found.items} | {verdict}{needed} |"
    yield ""
    yield "| step | headline | baseline | against it | training | harness | run |"
    yield "|---|---|---|---|---|---|---|"
    for point in report.points[-ROWS:][::-1]:
        entry = point.entry
        cells = (
            str(entry.step),
            measured(entry.headline),
            measured(entry.baseline),
            WORDS.get(entry.verdict, entry.verdict) or "-",
            plain(entry.receipt),
            plain(entry.digests.harness[:12]) + ("" if point.comparable else " (not comparable)"),
            plain(entry.id),
        )
        yield f"| {' | '.join(cells)} |"
    if len(report.points) > ROWS:
        yield ""
        yield f"{len(report.points) - ROWS} earlier results are left out."
    yield from _versions(report)
    if report.missing:
        yield ""
        yield "Left out:"
        yield ""
        yield from (f"* {plain(line, 200)}" for line in report.missing)
    yield ""
    yield f"Made {plain(report.made_at)} by {plain(report.made_by)}. Intervals are 95%, over items."


def _versions(report: Report) -> Iterator[str]:
    changed = [version for version in report.harnesses if version.changes]
    if changed:
        yield ""
        yield "Harness versions:"
        yield ""
    for version in changed:
        names = ", ".join(f"{plain(change.path)} {change.change}" for change in version.changes or ())
        yield f"* {plain(version.digest[:12])} (from step {version.first_step}): {names}"
