"""The story of `orch report`: everything that the ledger and the run folders know of one training run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator import __version__
from orchestrator.actions import comparison
from orchestrator.actions.ledger import Ledger
from orchestrator.clock import utc_now
from orchestrator.errors import ConfigError, OrchError
from orchestrator.model import Difference, Entry, Receipt, Result, ResultRule
from orchestrator.workflows import reading
from orchestrator.workflows.versions import HarnessVersion, harness_versions

LARGEST = 1e9
"""of an accuracy or an acceptance length: what is larger is none"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How often the draft was right at one place of the block."""

    k: int
    marginal: float | None
    survival: float | None
    conditional: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a DFlash result holds beside its headline; empty for other jobs."""

    positions: tuple[Position, ...] = ()
    trees: Mapping[int, float]
    """node budget -> acceptance length (walk, macro)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One result on the curve."""

    entry: Entry
    ours: Measured
    baseline: Measured
    receipt: Receipt | None
    versions: Mapping[str, str]
    comparable: bool
    """measured by the same harness on the same data as the latest"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """The latest result against another one."""

    what: str
    difference: Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything a report shows. `points` are by step, then time; the last one is the latest."""

    run: str
    job: str
    headline_name: str
    better: str
    origin: str
    points: tuple[Point, ...]
    against: tuple[Against, ...]
    harnesses: tuple[HarnessVersion, ...]
    missing: tuple[str, ...]
    """parts that are left out, and why"""
    made_at: str
    made_by: str
    warnings: tuple[str, ...]

    @property
    def latest(self) -> Point:
        """The newest checkpoint's."""
        return self.points[-1]

    @property
    def best(self) -> Point:
        """Of those that can be compared with the latest, the one with the best headline."""
        fair = [point for point in self.points if point.comparable and point.entry.headline]
        sign = 1 if self.better == "higher" else -1
        return max(fair, key=lambda point: sign * _value(point.entry), default=self.latest)


def report(run: str | None, job: str | None) -> Report:
    """The report of one training run. Raises ConfigError where none, or several, could be meant."""
    with Ledger.at_home() as ledger:
        entries, warnings = _series(ledger, run, job)
        latest = entries[-1]
        read = [_read(entry, ledger, warnings) for entry in entries]
        points = tuple(
            _point(entry, result, document, comparable=entry.same_measure(latest))
            for entry, (result, document) in zip(entries, read, strict=True)
        )
        rule = next((result.rule for result, _ in reversed(read) if result is not None), ResultRule())
        documents = {entry.id: document for entry, (_, document) in zip(entries, read, strict=True)}
        return Report(
            run=latest.run,
            job=latest.job,
            headline_name=latest.headline_name,
            better=latest.better,
            origin=latest.origin,
            points=points,
            against=_against(entries, documents, rule),
            harnesses=harness_versions(entries, ledger),
            missing=_missing(points, rule),
            made_at=utc_now(),
            made_by=f"orch {__version__}",
            warnings=tuple(warnings),
        )


def _series(ledger: Ledger, run: str | None, job: str | None) -> tuple[list[Entry], list[str]]:
    """The results of the run that is meant: of several curves the one that grew last, with a word about the others."""
    entries = ledger.entries(run, None, job)
    if not entries:
        which = " ".join(filter(None, (f"of run {run!r}" if run else "", f"by job {job!r}" if job else "")))
        known = ", ".join(ledger.runs())
        hint = f"runs with results: {known}" if known else "orch eval-latest makes one"
        raise ConfigError(f"no results {which}".rstrip(), hint=hint)
    names = sorted({entry.run for entry in entries})
    if len(names) > 1:
        raise ConfigError(f"several training runs have results: {', '.join(names)}", hint="orch report RUN")
    newest = max(entries, key=lambda entry: (entry.ended_at, entry.step))
    others = {entry.series for entry in entries} - {newest.series}
    warnings = [
        f"left out: results of job {job_name} from {origin} ({headline or 'no headline'}); --job chooses"
        for _, origin, job_name, headline in sorted(others)
    ]
    return [entry for entry in entries if entry.series == newest.series], warnings


def _read(entry: Entry, ledger: Ledger, warnings: list[str]) -> tuple[Result | None, Mapping[str, Any]]:
    """A result with the file that it was read from; what can't be read leaves its line of the ledger."""
    try:
        result = ledger.open(entry.host, entry.id)
        content = reading.files_in(result.folder)(result.rule.file)
        document = json.loads(content or b"{}")
    except (OrchError, OSError, ValueError, RecursionError) as error:
        warnings.append(f"run {entry.id}: {error}")
        return None, {}
    return result, document if isinstance(document, dict) else {}


def _point(entry: Entry, result: Result | None, document: Mapping[str, Any], *, comparable: bool) -> Point:
    baseline = document.get("baseline")
    return Point(
        entry=entry,
        ours=measured(document),
        baseline=measured(baseline if isinstance(baseline, dict) else {}),
        receipt=result.receipt if result else None,
        versions=result.versions if result else {},
        comparable=comparable,
    )


def measured(document: Mapping[str, Any]) -> Measured:
    """The parts of eval_results.json that have a chart of their own."""
    rows = document.get("positions")
    trees = document.get("ddtree")
    positions = [
        Position(
            k=row["k"],
            marginal=_number(row.get("marginal")),
            survival=_number(row.get("survival")),
            conditional=_number(row.get("conditional")),
        )
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, dict) and isinstance(row.get("k"), int) and 0 < row["k"] <= 256
    ]
    lengths = {
        int(budget): _number(comparison.pick(tree, "walk_macro"))
        for budget, tree in (trees.items() if isinstance(trees, dict) else ())
        if isinstance(budget, str) and budget.isdecimal() and len(budget) < 9
    }
    return Measured(
        positions=tuple(sorted(positions, key=lambda row: row.k)),
        trees={budget: length for budget, length in sorted(lengths.items()) if length is not None},
    )


def _number(value: Any) -> float | None:
    return float(value) if comparison.is_number(value) and abs(value) < LARGEST else None


def _against(
    entries: Sequence[Entry], documents: Mapping[str, Mapping[str, Any]], rule: ResultRule
) -> tuple[Against, ...]:
    """The latest against its baseline, the checkpoint before it, and the first, paired by item."""
    latest = entries[-1]
    ours = comparison.items(documents[latest.id], rule)
    fair = [entry for entry in entries if entry.same_measure(latest) and entry.step < latest.step]
    found = []
    if latest.baseline is not None:
        theirs = comparison.items(documents[latest.id].get("baseline"), rule)
        found.append(Against(what="the baseline", difference=comparison.paired(ours, theirs, latest.better)))
    for other in (*fair[-1:], *fair[:-1][:1]):
        theirs = comparison.items(documents[other.id], rule)
        difference = comparison.paired(ours, theirs, latest.better)
        found.append(Against(what=f"step {other.step}", difference=difference))
    return tuple(one for one in found if one.difference.estimate is not None)


def _missing(points: Sequence[Point], rule: ResultRule) -> tuple[str, ...]:
    missing = []
    if not any(point.entry.headline for point in points):
        missing.append("The curve: the job names no headline (result.headline).")
    elif not any(point.entry.headline and point.entry.headline.low is not None for point in points):
        why = "its items could not be read" if rule.items else "the job names no items (result.items)"
        missing.append(f"Intervals and paired differences: {why}.")
    if not any(point.entry.baseline for point in points):
        missing.append("The baseline: the result files hold none.")
    if not any(point.ours.positions for point in points):
        missing.append("Accuracy by position: the result files hold no `positions`.")
    if not any(point.ours.trees for point in points):
        missing.append("Tree drafting: the result files hold no `ddtree`.")
    return tuple(missing)


def _value(entry: Entry) -> float:
    return entry.headline.value if entry.headline else float("nan")
