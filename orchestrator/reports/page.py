"""A report as one HTML file: no network, no third party. Everything that came from a host is escaped and capped.

The policy in its head forbids every connection and allows exactly the style and the script that stand in the file.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from importlib import resources

from orchestrator.amounts import decimal
from orchestrator.reports import charts
from orchestrator.reports.markup import badge, safe, span
from orchestrator.reports.page_data import data
from orchestrator.reports.page_tables import harnesses, reading, runs
from orchestrator.reports.text import figure
from orchestrator.workflows.report import Report

FILES = ("page.css", "page.js")


def page(report: Report) -> str:
    """The whole file."""
    style, script = (resources.files("orchestrator.reports").joinpath(name).read_text() for name in FILES)
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    )
    title = f"{safe(report.run, 80)}: {charts.headline_title(report.headline_name).lower()}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><meta name="robots" content="noindex">'
        f"<title>{title}</title><style>{style}</style></head>\n<body>{_body(report)}\n"
        f'<script type="application/json" id="data">{data(report)}</script>\n<script>{script}</script></body></html>\n'
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# -- the body ----------------------------------------------------------------------------------------------------------


def _body(report: Report) -> str:
    return "".join(
        (
            '<a class="skip" href="#runs-title">Skip to the table of runs</a>',
            _header(report),
            "<main>",
            _tiles(report),
            _curve(report),
            _pair(report),
            runs(report),
            harnesses(report),
            reading(report),
            "</main>",
            f"<footer>Made {safe(report.made_at)} by {safe(report.made_by)} from the ledger on one computer. "
            "This file loads nothing and sends nothing.</footer>",
        )
    )


def _header(report: Report) -> str:
    steps = [point.entry.step for point in report.points]
    count = len(set(steps))
    which = (
        f"{count} checkpoints, step {min(steps)} to {max(steps)}" if count > 1 else f"one checkpoint, step {steps[0]}"
    )
    return (
        f'<header><div><p class="eyebrow">Evaluation of a training run</p><h1>{safe(report.run, 80)}</h1>'
        f'<p class="lead">{charts.headline_title(report.headline_name)} by job {safe(report.job, 80)}: {which}</p>'
        f'<p class="lead">Checkpoints of <code>{safe(report.origin)}</code></p></div>'
        '<button id="theme" type="button" class="scripted" hidden>Dark mode</button>'
        "</header>"
    )


def _tiles(report: Report) -> str:
    latest, best = report.latest.entry, report.best.entry
    tiles = [_tile(f"Latest, step {latest.step}", figure(latest.headline), span(latest.headline))]
    for against in report.against[:2]:
        found = against.difference
        assert found.estimate is not None
        needed = f"<br>about {found.needed_items} items would settle it" if found.needed_items else ""
        said = badge(found.verdict)
        range_ = span(found.estimate, signed=True)
        tiles.append(
            _tile(f"Against {safe(against.what)}", decimal(found.estimate.value, "+"), f"{range_} {said}{needed}")
        )
    if best.step != latest.step:
        tiles.append(_tile("Best so far", figure(best.headline), f"step {best.step}"))
    undisturbed = sum(point.entry.receipt == "undisturbed" for point in report.points)
    seen = f"{undisturbed} of {len(report.points)}"
    tiles.append(_tile("Training undisturbed", seen, "evaluations with a receipt that says so"))
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _tile(name: str, value: str, below: str) -> str:
    return f'<div><dt>{name}</dt><dd class="figure">{value}</dd><dd class="range">{below}</dd></div>'


def _curve(report: Report) -> str:
    summary = spoken(report)
    drawing = charts.curve(report, summary)
    legend = [("ours", "this run")]
    if any(point.entry.headline and point.entry.headline.low is not None for point in report.points):
        legend.append(("span", "95% interval over items"))
    if report.latest.entry.baseline is not None:
        legend.append(("base", "baseline"))
    if not all(point.comparable for point in report.points):
        legend.append(("other", "other harness or data: not comparable"))
    shown = f'<figure>{drawing}<div class="tip" hidden></div></figure>{_legend(legend)}' if drawing else ""
    last = len(report.points) - 1
    return (
        f'<section class="card" aria-labelledby="curve-title"><h2 id="curve-title">'
        f"{charts.headline_title(report.headline_name)} over training</h2>"
        f'<p class="note">{html.escape(summary)}</p>{shown}'
        '<div class="picker scripted" hidden><label for="slider" id="chosen">Step</label>'
        '<button type="button" id="back" aria-label="Checkpoint before">&#8592;</button>'
        f'<input type="range" id="slider" min="0" max="{last}" value="{last}" aria-describedby="slider-help">'
        '<button type="button" id="forth" aria-label="Next checkpoint">&#8594;</button></div>'
        '<p class="spoken" id="slider-help">Chooses the checkpoint that the facts and the curve by position show.</p>'
        '<dl class="facts scripted" id="facts" hidden></dl></section>'
    )


def spoken(report: Report) -> str:
    """The curve in one sentence."""
    latest = report.latest.entry
    if latest.headline is None:
        return f"Step {latest.step} has no headline."
    range_ = span(latest.headline)
    said = f"Step {latest.step}: {decimal(latest.headline.value)}" + (f" ({range_})" if range_ else "")
    if latest.baseline is not None:
        said += f", baseline {decimal(latest.baseline.value)}"
        said += {"better": ": better", "worse": ": worse"}.get(latest.verdict or "", ": no difference shown")
    best = report.best.entry
    if best.headline is not None and best.step != latest.step:
        said += f". Best: {decimal(best.headline.value)} at step {best.step}"
    return said + "."


def _legend(rows: Sequence[tuple[str, str]]) -> str:
    items = "".join(f'<li class="{kind}"><i></i>{text}</li>' for kind, text in rows)
    return f'<ul class="legend">{items}</ul>'


def _pair(report: Report) -> str:
    cards = []
    if drawing := charts.positions(report):
        legend = [("ours", 'step <span class="chosen-step">' + str(report.latest.entry.step) + "</span>")]
        first = next((point for point in report.points if point.comparable), report.latest)
        if first is not report.latest:
            legend.append(("first", f"step {first.entry.step}"))
        if report.latest.baseline.positions:
            legend.append(("base", "baseline"))
        measures = (
            ("survival", "Right up to here"),
            ("conditional", "Right if all before were"),
            ("marginal", "Right here"),
        )
        tabs = "".join(
            f'<input type="radio" name="measure" id="m-{key}" value="{key}"{" checked" if key == "survival" else ""}>'
            f'<label for="m-{key}">{label}</label>'
            for key, label in measures
        )
        cards.append(
            '<section class="card" aria-labelledby="positions-title"><h2 id="positions-title">Accuracy by position</h2>'
            '<p class="note">How far into a drafted block the draft agrees with the target.</p>'
            '<fieldset class="tabs scripted" hidden><legend class="spoken">Which share</legend>'
            f"{tabs}</fieldset><figure>{drawing}</figure>{_legend(legend)}</section>"
        )
    if drawing := charts.trees(report):
        budgets = ", ".join(map(str, charts.budgets(report)))
        note = f"Acceptance length when a tree of up to {budgets} nodes is drafted instead of one line."
        legend = [("dashed", "the baseline at the same budget")] if report.latest.baseline.trees else []
        cards.append(
            '<section class="card" aria-labelledby="trees-title"><h2 id="trees-title">Tree drafting by budget</h2>'
            f'<p class="note">{note}</p><figure>{drawing}<div class="tip" hidden></div></figure>'
            f"{_legend(legend)}</section>"
        )
    return f'<div class="pair">{"".join(cards)}</div>' if len(cards) > 1 else "".join(cards)
