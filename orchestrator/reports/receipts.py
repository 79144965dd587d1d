"""Receipts as documents and as what a person reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.amounts import count, duration, memory
from orchestrator.model import Receipt
from orchestrator.reports.text import shown
from orchestrator.workflows.guard import Guarded

STYLES = {"undisturbed": "green", "changed": "red", "ended": "yellow", "not_observed": "yellow"}
KEYS = ("id", "kind", "run", "job", "host", "step", "program", "exit_code", "ended_at", "verdict")
LISTS = ("reasons", "windows", "limits", "hosts")
Document = dict[str, Any]
Json = Mapping[str, Any]


def receipt_body(kept: Json) -> Document:
    """CONTRACT's `receipt`, with what it belongs to."""
    return {**{key: kept.get(key) for key in (*KEYS, "file")}, **{key: list(kept.get(key) or ()) for key in LISTS}}


def guard_body(guarded: Guarded) -> Document:
    """The receipt of a guarded command."""
    receipt = guarded.receipt
    return {
        "id": guarded.id,
        "kind": "guard",
        "run": guarded.run,
        "step": None,
        "exit_code": guarded.exit_code,
        "ended_at": next((one["to"] for one in reversed(receipt.windows) if one["to"]), None),
        "verdict": receipt.verdict,
        "reasons": list(receipt.reasons),
        "windows": list(receipt.windows),
        "limits": list(receipt.limits),
        "hosts": list(receipt.hosts),
        "file": str(guarded.file or ""),
    }


def receipt_line(receipt: Receipt) -> RenderableType:
    """The verdict with its reasons, in one paragraph."""
    return Text.assemble("training: ", (receipt.verdict, STYLES[receipt.verdict]), f": {_reasons(receipt.reasons)}")


def _reasons(reasons: Iterable[str]) -> str:
    return "; ".join(shown(reason, limit=600) for reason in reasons)


def receipt_view(kept: Json) -> RenderableType:
    """All of a receipt: verdict, reasons, a line a window, and what it can't tell."""
    verdict = str(kept["verdict"])
    blocks: list[RenderableType] = [Text(_about(kept), style="bold"), Text(verdict, style=STYLES.get(verdict, ""))]
    blocks += [Text(f"  {shown(str(reason), limit=1000)}") for reason in kept.get("reasons") or ()]
    others = [row for row in kept.get("hosts") or () if row["verdict"] != verdict]
    blocks += [Text(f"  {shown(row['host'])}: {row['verdict']}: {_reasons(row['reasons'])}") for row in others]
    blocks += [Text(""), _windows(kept.get("windows") or ()), Text("")]
    blocks += [Text(f"  {shown(str(limit), limit=1000)}", style="dim") for limit in kept.get("limits") or ()]
    return Group(*blocks)


def _about(kept: Json) -> str:
    if kept.get("kind") == "guard":
        program = shown(str(kept.get("program")))
        code = shown(str(kept.get("exit_code")))
        return f"{shown(str(kept['id']))}: `{program}` (exit code {code}) beside run {shown(str(kept.get('run')))}"
    where = f" on {shown(str(kept['host']))}" if kept.get("host") else ""
    return (
        f"{shown(str(kept['id']))}: evaluation of step {kept.get('step')} of run {shown(str(kept.get('run')))}{where}"
    )


def _windows(windows: Any) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("doing", "host", "from", "lasted", "samples", "process", "step", "waited", "rate", "faults", "rss"):
        table.add_column(column, overflow="fold")
    for window in windows:
        table.add_row(*(Text(cell) for cell in _cells(window)))
    return table


def _cells(window: Json) -> Iterator[str]:
    before, after = window.get("before") or {}, window.get("after") or {}
    measured = window.get("measured") or {}
    taken = len(window.get("samples") or ()) + bool(before) + bool(after)
    yield shown(str(window["doing"]))
    yield shown(str(window["host"]))
    yield shown(str(window.get("from") or "?"))
    yield duration(measured["seconds"]) if measured.get("seconds") is not None else "?"
    yield str(taken)
    yield _pair(_process(before), _process(after))
    yield _pair(_known(before.get("step")), _known(after.get("step")))
    yield _against(measured.get("waited"), measured.get("waited_usually"), "{:.1%}")
    rate = measured.get("rate") or {}
    yield _against(rate.get("during"), rate.get("usual"), "{}", count)
    yield _known(measured.get("major_faults"))
    yield "?" if after.get("rss") is None else memory(after["rss"])


def _process(sample: Json) -> str:
    pid = (sample.get("identity") or {}).get("pid")
    return shown(f"{sample.get('state') or 'not seen'}{f' {pid}' if pid else ''}")


def _pair(one: str, other: str) -> str:
    return one if one == other else f"{one} to {other}"


def _known(value: object) -> str:
    return "?" if value is None else f"{value:.0f}" if isinstance(value, float) else shown(str(value))


def _against(value: float | None, usual: float | None, form: str, shorten: Any = None) -> str:
    """`3.1% (usually 2.9%)`."""
    if value is None:
        return "?"
    one, other = (
        form.format(shorten(number) if shorten else number) if number is not None else "?" for number in (value, usual)
    )
    return f"{one} (usually {other})"
