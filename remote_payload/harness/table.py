"""The measured facts as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def result_table(drafter: dict[str, Any], baseline: dict[str, Any] | None, budgets: Sequence[int]) -> str:
    """Acceptance lengths, then accuracy per position; the baseline beside the drafter."""
    columns = [drafter] if baseline is None else [drafter, baseline]
    lines = ["", _line("", ["drafter", "baseline"][: len(columns)])]
    lines.append("acceptance length (tokens per target pass, the target's own one included)")
    for key, label in (("walk_macro", "walk, macro"), ("pooled", "walk, pooled"), ("all_anchor", "all anchors")):
        lines.append(_line(f"  {label}", [_number(column["acceptance_length"][key]) for column in columns]))
    for budget in budgets:
        lines.append(
            _line(
                f"  DDTree {budget}, macro",
                [_number(column["ddtree"][str(budget)]["walk_macro"]) for column in columns],
            )
        )
    lines += _positions(columns)
    for key, label in (("rounds", "rounds"), ("censored", "censored rounds"), ("near_ties", "near ties")):
        lines.append(_line(label, [str(column[key]) for column in columns]))
    return "\n".join(lines) + "\n"


def _positions(columns: list[dict[str, Any]]) -> list[str]:
    lines = ["accuracy at position k: marginal / survival / conditional (anchors)"]
    for index in range(max(len(column["positions"]) for column in columns)):
        cells = [_position(column["positions"], index) for column in columns]
        lines.append(_line(f"  {index + 1}", cells))
    return lines


def _position(rows: list[dict[str, Any]], index: int) -> str:
    if index >= len(rows):
        return "-"
    row = rows[index]
    parts = " / ".join(_number(row[key]) for key in ("marginal", "survival", "conditional"))
    return f"{parts} ({row['n']})"


def _line(label: str, cells: Sequence[str]) -> str:
    return f"{label:<20}" + "".join(f"{cell:<32}" for cell in cells).rstrip()


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
