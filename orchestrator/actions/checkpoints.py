"""The verb `scan`: which checkpoints lie on a training box, and which is the latest complete one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from orchestrator.actions.torn import Torn, below
from orchestrator.answers import read_scan
from orchestrator.model import Candidate, Host, Scan, Timeouts, TrainingRun
from orchestrator.ssh.agent import ask
from orchestrator.ssh.connection import Connection


def scan(connection: Connection, host: Host, run: TrainingRun, timeouts: Timeouts, torn: Sequence[Torn] = ()) -> Scan:
    """Look at a run's checkpoint root; `torn` are those known to be. ConfigError without such a folder."""
    process = run.process.given() if run.process else None
    args = {"root": run.checkpoints, "layout": run.layout, "torn": below(torn, host, run), "process": process}
    return read_scan(host.name, ask(connection, host, "scan", args, role="train", timeouts=timeouts))


def passed_over(scan: Scan) -> tuple[Candidate, ...]:
    """The unproven candidates newer than the latest complete one, newest first."""
    floor = scan.latest.step if scan.latest else -1
    newer = [c for c in scan.candidates if c.state in ("writing", "torn") and (c.step is None or c.step > floor)]
    return tuple(sorted(newer, key=lambda candidate: candidate.step or 0, reverse=True))


def not_looked_into(scan: Scan) -> tuple[Candidate, ...]:
    """Those older than the latest complete one that there was no time to prove."""
    return tuple(candidate for candidate in scan.candidates if candidate.unseen)


def spacing(scan: Scan) -> int | None:
    """Steps between two saves: the usual distance of complete checkpoints; None with fewer than two."""
    steps = sorted(c.step for c in scan.candidates if c.state == "complete" and c.step is not None)
    gaps = sorted(b - a for a, b in itertools.pairwise(steps) if b > a)
    return gaps[len(gaps) // 2] if gaps else None
