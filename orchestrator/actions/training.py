"""Looking at training for a receipt: windows around each stretch in which orch acts on its box."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from orchestrator import windows
from orchestrator.actions.observation import RunFacts, run_question
from orchestrator.model import Host, Timeouts, TrainingRun
from orchestrator.ssh.agent import Conversation
from orchestrator.ssh.connection import Connection
from orchestrator.ssh.witness import Gap, Witness

Window = dict[str, Any]
Sample = dict[str, Any]
Doing = Literal["observe", "ship", "evaluate", "collect", "command", "aftermath"]


def window(
    doing: Doing,
    host: str,
    before: Sample | None,
    after: Sample | None,
    samples: Sequence[Sample] = (),
    gaps: Sequence[Gap] = (),
    widest: float | None = None,
) -> Window:
    """One window between two samples of the training process on one host, with those from between.

    `widest`: seconds between two of all samples that were taken, at most; not all are kept.
    """
    return {
        "doing": doing,
        "host": host,
        "from": (before or after or {}).get("at"),
        "to": (after or before or {}).get("at"),
        "before": before,
        "after": after,
        "samples": windows.thinned(samples),
        "widest_s": widest,
        "gaps": [{"from": gap.since, "to": gap.until, "why": gap.why} for gap in gaps],
    }


def observed(doing: Doing, host: str, facts: RunFacts | None) -> Window:
    """The window of one question: its samples from before and after everything else that it looked at."""
    if facts is None or not facts.samples:
        unseen = [Gap(since="?", until="?", why=why) for why in (facts.errors if facts else ())]
        return window(doing, host, None, None, gaps=unseen)
    return window(doing, host, dict(facts.samples[0]), dict(facts.samples[-1]))


def watch(
    connect: Callable[[], Connection],
    host: Host,
    run: TrainingRun,
    timeouts: Timeouts,
    again: Callable[[], Connection] | None = None,
) -> Witness:
    """Begin to watch a run on one of its hosts until the witness is dismissed.

    `again` gives a new connection when contact was lost; without it nobody watches from then on.
    """
    asked = run_question(run, host)
    args = {"run": {key: asked[key] for key in ("process", "log", "progress")}, "every": timeouts.sample, "gpus": True}

    def conversation(reach: Callable[[], Connection]) -> Conversation:
        return Conversation(reach(), host, "witness", args, role="train", timeouts=timeouts)

    return Witness(partial(conversation, connect), partial(conversation, again) if again else None)


def watched(doing: Doing, host: str, witness: Witness, after: Sample | None = None) -> Window:
    """The window that a dismissed witness has seen; `after` is a later look, where the witness lost contact."""
    samples = list(witness.samples)
    if after is not None:
        samples.append(after)
    if not samples:
        return window(doing, host, None, None, gaps=witness.gaps)
    last = samples[-1] if len(samples) > 1 and (witness.saw_the_end or after is not None) else None
    between = samples[1:-1] if last is not None else samples[1:]
    return window(doing, host, samples[0], last, between, witness.gaps, witness.widest)
