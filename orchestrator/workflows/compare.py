"""The story of `orch compare`: two results of the ledger, paired by item. No host is asked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.actions import comparison
from orchestrator.actions.ledger import Ledger
from orchestrator.errors import ConfigError, EvaluationFailed, OrchError, Refused
from orchestrator.measured import Difference, Entry, Estimate, Result, Verdict
from orchestrator.workflows import reading

BASELINE = "baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a comparison: a result, or the baseline that was measured with it."""

    label: str
    entry: Entry
    headline: Estimate | None
    is_baseline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareReport:
    """How two results differ."""

    a: Side
    b: Side
    difference: Difference
    mixed: tuple[str, ...]
    """what made them differs in these: harness, data; empty where the comparison is fair"""
    warnings: tuple[str, ...]

    @property
    def verdict(self) -> Verdict | None:
        """What is said of `a`."""
        return self.difference.verdict


def compare(a: str, b: str, *, run: str | None = None, job: str | None = None, mixed: bool = False) -> CompareReport:
    """Two results, paired by item. `a`, `b`: run id or the beginning of one, latest, step:N or baseline.

    Raises ConfigError for a name that means none or several, Refused for different harnesses or data without `mixed`.
    """
    with Ledger.at_home() as ledger:
        ours, theirs = _sides(a, b, _Names(ledger, run, job))
        differs = _differs(ours.entry, theirs.entry)
        if differs and not mixed:
            reason = f"{ours.label} and {theirs.label} were measured with {' and '.join(differs)}"
            raise Refused(f"{reason}: their difference is not one of checkpoints", hint="--mixed compares all the same")
        return _compared(ours, theirs, differs, ledger)


def judged(report: CompareReport) -> OrchError | None:
    """What `--fail-if-worse` fails with: A is worse, or nothing says whether it is. A gate that can't see is shut."""
    if report.verdict == "worse":
        return EvaluationFailed(f"{report.a.label} is worse than {report.b.label}")
    if report.verdict is None:
        why = f"{report.a.label} can't be judged: fewer than two shared items with {report.b.label}"
        job = report.a.entry.job
        hint = f"mend items, item_id and item_value of result: in jobs/{job}.yaml; then orch rerun ID, of both"
        return EvaluationFailed(why, hint=hint)
    return None


def _compared(ours: Side, theirs: Side, differs: tuple[str, ...], ledger: Ledger) -> CompareReport:
    warnings = []
    if ours.entry.headline_name != theirs.entry.headline_name:
        names = f"{ours.entry.headline_name} and {theirs.entry.headline_name}"
        raise Refused(f"they measure different things: {names}", hint="orch results lists what can be compared")
    if ours.entry.digests.job != theirs.entry.digests.job:
        warnings.append("the job's command or settings differ between them")
    items: list[dict[str, float]] = []
    for side in (ours, theirs):
        try:
            pairable, others, missing = _items(side, ledger.open(side.entry.host, side.entry.id))
            items.append(pairable)
            if others:
                why = f"have no id of their own: see result.item_id of jobs/{side.entry.job}.yaml"
                warnings.append(f"{side.label}: {others} items are left out, as they {why}")
            elif missing:
                warnings.append(f"{side.label}: {missing}")
        except (OrchError, OSError) as error:
            items.append({})
            warnings.append(f"{side.label}: its items can't be read: {error}")
    found = comparison.paired(items[0], items[1], ours.entry.better)
    if found.estimate is None and ours.headline and theirs.headline:
        found = replace(found, estimate=Estimate(value=ours.headline.value - theirs.headline.value))
        where = f"result.items in jobs/{ours.entry.job}.yaml"
        warnings.append(f"no shared items, so no interval and no verdict ({where})")
    elif (most := max(map(len, items))) > found.items:
        warnings.append(f"{found.items} of {most} items are in both and count")
    return CompareReport(a=ours, b=theirs, difference=found, mixed=differs, warnings=tuple(warnings))


def _items(side: Side, result: Result) -> tuple[dict[str, float], int, str]:
    """Those that can be paired, how many others there are, and why there are none although the job names them."""
    document = reading.document_of(result)
    measured = document.get("baseline") if side.is_baseline else document
    rule = result.rule
    return comparison.items(measured, rule), comparison.unpaired(measured, rule), comparison.missing(measured, rule)


def _differs(ours: Entry, theirs: Entry) -> tuple[str, ...]:
    mine, other = ours.digests, theirs.digests
    pairs = (("harnesses", mine.harness, other.harness), ("data", mine.data, other.data))
    return tuple(f"different {name}" for name, one, two in pairs if one != two)


# -- names ---------------------------------------------------------------------------------------------------------


def _sides(a: str, b: str, names: _Names) -> tuple[Side, Side]:
    """Both results. An id says which training run `latest` and `step:N` are of, whichever side it stands on."""
    if a == b == BASELINE:
        raise ConfigError("two baselines say nothing", hint="orch compare latest baseline")
    first, second = (b, a) if a == BASELINE or (_relative(a) and not _relative(b) and b != BASELINE) else (a, b)
    one = names.find(first, None)
    other = names.find(second, one)
    return (one, other) if first is a else (other, one)


def _relative(name: str) -> bool:
    return name == "latest" or name.startswith("step:")


class _Names:
    """What the names of a command line mean in a ledger."""

    def __init__(self, ledger: Ledger, run: str | None, job: str | None) -> None:
        self._ledger = ledger
        self._run = run
        self._job = job

    def find(self, name: str, beside: Side | None) -> Side:
        """The result of that name, of the same series as the one `beside`. Raises ConfigError."""
        if name == BASELINE:
            assert beside is not None
            return self._baseline(beside)
        if name == "latest":
            entry = self._series(beside)[-1]
        elif match := re.fullmatch(r"step:(\d{1,18})", name):
            entry = self._of_step(int(match.group(1)), beside)
        else:
            entry = self._by_id(name)
        return Side(label=f"step {entry.step} (run {entry.id})", entry=entry, headline=entry.headline)

    def _baseline(self, beside: Side) -> Side:
        entry = beside.entry
        if entry.baseline is None:
            raise ConfigError(f"run {entry.id} measured no baseline", hint="name another result: step:N or a run id")
        return Side(label=f"baseline of run {entry.id}", entry=entry, headline=entry.baseline, is_baseline=True)

    def _series(self, beside: Side | None) -> Sequence[Entry]:
        if beside is not None:
            mine = beside.entry
            known = self._ledger.entries(mine.run, mine.origin, mine.job)
            return [entry for entry in known if entry.headline_name == mine.headline_name]
        known = self._ledger.entries(self._run, None, self._job)
        if not known:
            which = f" of run {self._run}" if self._run else ""
            hint = "orch results lists those of other runs" if self._ledger.runs() else "orch eval-latest makes one"
            raise ConfigError(f"the ledger has no results{which}", hint=hint)
        series = {entry.series for entry in known}
        if len(series) > 1:
            listed = "; ".join(f"{run} from {origin}, job {job}" for run, origin, job, _ in sorted(series))
            raise ConfigError(f"several are meant: {listed}", hint="--run, --job, or a run id says which")
        return known

    def _of_step(self, step: int, beside: Side | None) -> Entry:
        series = self._series(beside)
        found = [entry for entry in series if entry.step == step]
        if not found:
            near = sorted({entry.step for entry in series}, key=lambda known: abs(known - step))[:5]
            raise ConfigError(f"no result of step {step}", hint=f"near it: {', '.join(map(str, sorted(near)))}")
        fair = [entry for entry in found if beside is None or entry.same_measure(beside.entry)]
        return (fair or found)[-1]

    def _by_id(self, name: str) -> Entry:
        found = self._ledger.with_prefix(name)
        if len(found) == 1:
            return found[0]
        if not found:
            hint = "latest, step:N, baseline, a run id or its beginning; orch results lists them"
            raise ConfigError(f"no result {name!r}", hint=hint)
        listed = ", ".join(f"{entry.id} on {entry.host}" for entry in found)
        raise ConfigError(f"{name!r} begins several run ids: {listed}", hint="give more of it")
