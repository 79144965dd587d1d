"""The measured facts as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

VERDICTS = {"better": "better than the baseline", "worse": "worse than the baseline", None: "too few prompts to tell"}


def result_table(
    drafter: dict[str, Any],
    baseline: dict[str, Any] | None,
    comparison: dict[str, Any] | None,
    budgets: Sequence[int],
) -> str:
    """Acceptance lengths, their parts, accuracy per position; the baseline beside the drafter, and the verdict."""
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
    for key, title in (("data_sets", "data set"), ("context_lengths", "context of")):
        if len(drafter[key]) > 1:
            lines += [
                _line(f"  {title} {name}", [_part(column[key].get(name)) for column in columns])
                for name in drafter[key]
            ]
    lines.append(_line("rounds of length", [_histogram(column["histogram"]) for column in columns]))
    lines += _positions(columns)
    for key, label in (("rounds", "rounds"), ("censored", "censored rounds"), ("near_ties", "near ties")):
        lines.append(_line(label, [str(column[key]) for column in columns]))
    lines += [] if comparison is None else _verdict(comparison)
    for column, role in zip(columns, ("drafter", "baseline"), strict=False):
        lines += [f"{role}: {line}" for line in suspicion(column["mutations"]) if column["mutations"]["suspects"]]
    return "\n".join(lines) + "\n"


def suspicion(checks: dict[str, Any] | None) -> list[str]:
    """What the check of the configuration found, a line for each suspect; one line where it found none."""
    if checks is None:
        return []
    suspects = [mutant for mutant in checks["mutants"] if mutant["clearly_higher"]]
    if not suspects:
        return [f"configuration: {len(checks['mutants'])} mutants, none scores clearly higher"]
    return [
        f"probable config mismatch: with {mutant['name']} it scores {_number(mutant['acceptance_length'])}, "
        f"{mutant['lead']:+.3f} against as configured, on {mutant['anchors']} anchors"
        for mutant in sorted(suspects, key=lambda mutant: -mutant["lead"])
    ]


def _verdict(comparison: dict[str, Any]) -> list[str]:
    verdict, needed = comparison["verdict"], comparison["needed_items"]
    said = VERDICTS.get(verdict, "no difference shown")
    if needed is not None:
        said += f"; {needed} prompts would settle a difference of this size"
    lines = [f"verdict: {said}", _difference("walk, macro", comparison)]
    lines.append(_difference("all anchors", comparison["all_anchor"]))
    return lines + [_difference(f"DDTree {budget}", each) for budget, each in comparison["ddtree"].items()]


def _difference(label: str, facts: dict[str, Any]) -> str:
    difference = facts["difference"]
    value, low, high = (difference[key] for key in ("value", "low", "high"))
    if low is None:
        return f"  {label}: {_number(value)} ({facts['items']} prompts)"
    return f"  {label}: {value:+.3f}, 95% interval {low:+.3f} to {high:+.3f} ({facts['items']} prompts)"


def _part(part: dict[str, Any] | None) -> str:
    return "-" if part is None else f"{_number(part['walk_macro'])} ({part['rounds']} rounds)"


def _histogram(counts: dict[str, int]) -> str:
    return " ".join(f"{length}:{count}" for length, count in counts.items()) or "-"


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
