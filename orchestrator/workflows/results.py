"""The story of `orch results`: what the ledger knows. No host is asked."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from orchestrator.actions.ledger import Ledger
from orchestrator.errors import ConfigError
from orchestrator.measured import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The results of one training run, job and headline: one curve, by step, then time."""

    entries: tuple[Entry, ...]
    """the newest, or all"""
    values: tuple[float, ...]
    """headlines of all"""
    count: int
    first_step: int

    @property
    def latest(self) -> Entry:
        """Of the highest step; of several, the one that ended last."""
        return self.entries[-1]


def results(run: str | None, last: int | None = None) -> tuple[Series, ...]:
    """The curves of one training run, or of all, with the `last` entries of each, or all of them.

    Raises ConfigError for a run without results.
    """
    with Ledger.at_home() as ledger:
        entries = ledger.entries(run, last=last)
        curves = ledger.curves(run) if last is not None else {}
        if run is not None and not entries:
            known = ", ".join(ledger.runs())
            hint = f"runs with results: {known}" if known else "orch eval-latest makes one"
            raise ConfigError(f"no results of a run {run!r}", hint=hint)
    found = []
    for series, group in groupby(entries, key=lambda entry: entry.series):
        mine = tuple(group)
        points = curves.get(series) or [(one.step, one.value) for one in mine]
        values = tuple(value for _, value in points if value is not None)
        found.append(Series(entries=mine, values=values, count=len(points), first_step=points[0][0]))
    return tuple(found)
