"""The lower half of a report: the runs with their receipts, the harness versions, and how to read it all."""

from __future__ import annotations

import html

from orchestrator.model import Entry
from orchestrator.reports import charts
from orchestrator.reports.markup import badge, safe, short, span
from orchestrator.reports.text import figure
from orchestrator.workflows.report import Point, Report
from orchestrator.workflows.versions import ChangedFile, HarnessVersion

DIFF_LINES = 1200
"""lines of harness differences in one page"""
REASON = 300


def runs(report: Report) -> str:
    head = (
        *(("step", "number"), (charts.headline_title(report.headline_name), "number"), ("interval", "")),
        *(("baseline", "number"), ("against it", ""), ("training", ""), ("ended, UTC", "")),
        *(("harness", ""), ("data", ""), ("run", "")),
    )
    cells = "".join(f'<th scope="col"{_class(kind)}>{name}</th>' for name, kind in head)
    latest = report.latest.entry
    rows = [_run_row(index, point, latest) for index, point in enumerate(report.points)][::-1]
    return (
        '<section class="card" aria-labelledby="runs-title"><h2 id="runs-title">Runs and their receipts</h2>'
        '<p class="note">The receipt says what became of the training process in the stretches in which orch was at '
        "work on its box. The newest step first.</p>"
        '<div class="scroll" tabindex="0" role="region" aria-labelledby="runs-title"><table id="runs">'
        f"<thead><tr>{cells}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>{_receipts(report)}</section>"
    )


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _run_row(index: int, point: Point, latest: Entry) -> str:
    entry = point.entry
    marks = [
        "" if getattr(entry.digests, name) == getattr(latest.digests, name) else ' class="unlike"'
        for name in ("harness", "data")
    ]
    return (
        f'<tr data-point="{index}"><th scope="row" class="number">{entry.step}</th>'
        f'<td class="number">{figure(entry.headline)}</td><td>{span(entry.headline)}</td>'
        f'<td class="number">{figure(entry.baseline)}</td><td>{badge(entry.verdict)}</td>'
        f"<td>{badge(entry.receipt)}</td><td>{_moment(entry.ended_at)}</td>"
        f"<td{marks[0]}><code>{html.escape(short(entry.digests.harness)[:8])}</code></td>"
        f"<td{marks[1]}><code>{html.escape(short(entry.digests.data)[:8])}</code></td>"
        f"<td>{safe(entry.id, 60)}</td></tr>"
    )


def _moment(time: str) -> str:
    """`2026-11-30 13:20` of an ISO time; other text as it is."""
    day, _, clock = time.partition("T")
    return safe(f"{day} {clock[:5]}" if clock else time, 40)


def _receipts(report: Report) -> str:
    """What the receipts say that are not simply good."""
    rows = [
        f"<li>Step {point.entry.step}: {badge(point.entry.receipt)} "
        f"{safe('; '.join(point.receipt.reasons), REASON)}</li>"
        for point in reversed(report.points)
        if point.receipt is not None and point.entry.receipt in ("changed", "ended")
    ]
    return f'<ul class="plain">{"".join(rows[:20])}</ul>' if rows else ""


def harnesses(report: Report) -> str:
    rows = "".join(
        f'<tr><th scope="row"><code>{html.escape(short(version.digest))}</code></th>'
        f'<td class="number">{version.results}</td><td>{_steps(version)}</td>'
        f'<td class="number">{"-" if version.files is None else version.files}</td>'
        f"<td>{_changes_word(version)}</td></tr>"
        for version in report.harnesses
    )
    room = [DIFF_LINES]
    diffs = "".join(_version(version, room) for version in report.harnesses)
    plural = "one version" if len(report.harnesses) == 1 else f"{len(report.harnesses)} versions"
    return (
        '<section class="card" aria-labelledby="harness-title"><h2 id="harness-title">Evaluation scripts</h2>'
        f'<p class="note">{plural.capitalize()} of the harness measured this run. Results of different versions are '
        "not compared unless asked for.</p>"
        '<div class="scroll free" tabindex="0" role="region" aria-labelledby="harness-title"><table><thead><tr>'
        '<th scope="col">harness</th><th scope="col" class="number">results</th><th scope="col">steps</th>'
        '<th scope="col" class="number">files</th><th scope="col">against the version before</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{diffs}</section>"
    )


def _steps(version: HarnessVersion) -> str:
    if version.first_step == version.last_step:
        return str(version.first_step)
    return f"{version.first_step} to {version.last_step}"


def _changes_word(version: HarnessVersion) -> str:
    if version.changes is None:
        return "-"
    return safe(", ".join(f"{change.path} {change.change}" for change in version.changes[:6]) or "nothing") + (
        f" and {len(version.changes) - 6} more" if len(version.changes) > 6 else ""
    )


def _version(version: HarnessVersion, room: list[int]) -> str:
    return "".join(_changed(version, change, room) for change in version.changes or () if change.change == "modified")


def _changed(version: HarnessVersion, change: ChangedFile, room: list[int]) -> str:
    """One changed file, folded; `room` is how many lines the page has left for all of them."""
    lines = change.lines[: max(room[0], 0)]
    room[0] -= len(lines)
    left = len(change.lines) - len(lines)
    inside = f"<pre>{chr(10).join(map(_diff_line, lines))}</pre>" if lines else ""
    if left:
        inside += f'<p class="note">{left} more lines are left out to keep this file small.</p>'
    if change.note:
        inside += f'<p class="note">{html.escape(change.note)}</p>'
    name = f"{safe(change.path)} changed in {html.escape(short(version.digest))}"
    return f"<details><summary>{name}</summary>{inside}</details>"


def _diff_line(line: str) -> str:
    tag = {"+": "ins", "-": "del", "@": "b"}.get(line[:1])
    text = safe(line.expandtabs(8), 300)
    return f"<{tag}>{text}</{tag}>" if tag else text


def reading(report: Report) -> str:
    words = [
        (
            "Interval",
            "95%, by resampling the items (bootstrap, 2000 times): how far the mean would move with other items.",
        ),
        (
            "Better, worse",
            "The paired difference over the same items excludes zero. No difference shown does not mean equal: "
            "more items may tell.",
        ),
        (
            "Undisturbed",
            "The same training process before and after, in the stretches in which orch was at work there.",
        ),
    ]
    if report.headline_name.startswith("acceptance_length"):
        words.insert(0, ("Acceptance length", "Tokens that one pass of the target yields, its own one included."))
    rows = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in words)
    missing = "".join(f"<li>{html.escape(line)}</li>" for line in report.missing)
    left_out = f'<h2>Left out</h2><ul class="plain">{missing}</ul>' if missing else ""
    return f'<section class="card"><h2>How to read this</h2><dl class="words">{rows}</dl></section>' + (
        f'<section class="card">{left_out}</section>' if left_out else ""
    )
