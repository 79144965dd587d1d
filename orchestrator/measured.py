"""The nouns of answers: what a Run measured, and what made it. All that `orch results` and `orch compare` load.

Making a noun's class takes a millisecond, and those two have a fraction of a second. Everything else takes these from
`orchestrator.model`, with all other nouns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

Verdict = Literal["better", "worse", "no_difference"]
TrainingVerdict = Literal["undisturbed", "changed", "ended", "not_observed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """What made a result."""

    checkpoint: str
    harness: str
    job: str
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRule:
    """How to read what a job wrote."""

    file: str = "eval_results.json"
    headline: str | None = None
    """dotted path of the headline number in the result file"""
    better: Literal["higher", "lower"] = "higher"
    items: str | None = None
    item_id: str = "id"
    item_value: str | None = None
    """dotted path of each item's value: what intervals and paired differences are computed from"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number and, where the items allow one, its 95% interval."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The training process before, during and after, and the verdict."""

    verdict: TrainingVerdict
    reasons: tuple[str, ...]
    windows: tuple[Mapping[str, Any], ...]
    limits: tuple[str, ...]
    hosts: tuple[Mapping[str, Any], ...] = ()
    """{host, verdict, reasons} of each training host"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a Run measured, with the digests of all that made it and the receipt of the training it was taken from."""

    id: str
    run: str
    """name of the training run"""
    job: str
    host: str
    step: int
    headline_name: str
    headline: Estimate | None
    baseline: Estimate | None
    verdict: Verdict | None
    digests: Digests
    receipt: Receipt
    source: Mapping[str, object] | None
    """the git state of the training's source tree"""
    origin: str
    """host and folder that the checkpoint comes from: what tells runs of one name in two projects apart"""
    file: str
    """name of the result file in `folder`"""
    ended_at: str
    folder: Path
    """the laptop's copy of the run's small files"""
    rule: ResultRule = ResultRule()
    """how the result file is read: where its items are, and which way is better"""
    versions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """of orch, and of the libraries that the result file names"""


class Entry(NamedTuple):
    """One line of the ledger: what tables, curves and comparisons need of a Result, without opening its document.

    A tuple, and no dataclass: ten thousand of these take 40 ms less to make.
    """

    id: str
    host: str
    run: str
    job: str
    origin: str
    step: int
    ended_at: str
    headline_name: str
    better: str
    """higher or lower"""
    value: float | None
    """of the headline; its interval in `low` and `high`"""
    low: float | None
    high: float | None
    base_value: float | None
    """of the baseline"""
    base_low: float | None
    base_high: float | None
    verdict: Verdict | None
    """against the baseline"""
    receipt: str
    """its verdict"""
    checkpoint: str
    """digest of what made it, as the next three"""
    harness: str
    job_digest: str
    data: str

    @property
    def headline(self) -> Estimate | None:
        """What it measured."""
        return None if self.value is None else Estimate(value=self.value, low=self.low, high=self.high)

    @property
    def baseline(self) -> Estimate | None:
        """What that was held against."""
        base = self.base_value
        return None if base is None else Estimate(value=base, low=self.base_low, high=self.base_high)

    @property
    def digests(self) -> Digests:
        """Of what made it."""
        return Digests(checkpoint=self.checkpoint, harness=self.harness, job=self.job_digest, data=self.data)

    @property
    def series(self) -> tuple[str, str, str, str]:
        """Equal for results that form one curve: of one training run and job, measured by one headline."""
        return self.run, self.origin, self.job, self.headline_name

    def same_measure(self, other: Entry) -> bool:
        """Whether both were measured by the same harness on the same data."""
        return (self.harness, self.data) == (other.harness, other.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A paired difference over the items that two results share."""

    items: int
    """shared ones"""
    estimate: Estimate | None
    """mean of ours minus theirs; without items that of the headlines, which has no interval"""
    verdict: Verdict | None
    """None: too few shared items to tell"""
    needed_items: int | None
    """how many would show a difference of this size, where none is shown"""
