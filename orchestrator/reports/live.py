"""What a person sees of eval-latest while it happens, on stderr: the plan, a bar for bytes, a bar for prompts."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from orchestrator.actions.harness import FileDiff
from orchestrator.answers import Json
from orchestrator.model import Digests, Drift, Job, Plan, Run, Scan
from orchestrator.reports import tables
from orchestrator.reports.text import duration, shown, size, throughput

EVERY = 10.0
"""seconds between two lines where there is no terminal"""


class Live:
    """A Listener of eval-latest (see workflows/eval_latest.py). It remembers what it heard: `--json` prints that."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self.plan: Plan | None = None
        self.run: Run | None = None
        self.job: Job | None = None
        self.digests: Digests | None = None
        self.warnings: list[str] = []
        self._console = console
        self._quiet = quiet
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._said = 0.0
        self._moving: tuple[float, int] | None = None
        """when shipping was first heard of, and the bytes that were there by then"""

    def planned(self, plan: Plan, drift: Drift, diffs: tuple[FileDiff, ...], scan: Scan) -> None:
        self.plan = plan
        if self._quiet:
            return
        for row in scan.candidates:
            if row.state in ("writing", "torn") and plan.checkpoint and (row.step or 0) > plan.checkpoint.step:
                self._say(f"passed over {shown(row.path)}: {row.state}: {shown(row.reason)}")
        if diffs:
            tables.print_to(self._console, tables.diff_lines(diffs, drift))
        tables.print_to(self._console, tables.plan_lines(plan))

    def moved(self, done: int, total: int) -> None:
        if self._console.is_terminal:
            self._bar("shipping", done, total, bytes_bar=True)
            return
        now = time.monotonic()
        if self._moving is None:
            self._moving = (now, done)  # what an earlier attempt brought is no speed of this one
        began, kept = self._moving
        speed = (done - kept) / (now - began) if now > began else 0.0
        if self._due() or done >= total:
            left = f", {duration((total - done) / speed)} left" if speed and done < total else ""
            self._say(f"shipping {size(done)} of {size(total)}, {throughput(speed)}{left}")

    def started(self, run: Run, job: Job, digests: Digests) -> None:
        self.run, self.job, self.digests = run, job, digests
        self._end_bar()
        self._say(f"run {run.id} on {run.host}; Ctrl-C leaves it going, the same command joins it again")

    def looked(self, look: Json) -> None:
        progress = look.get("progress") or {}
        done, total, phase = (
            progress.get("done"),
            progress.get("total"),
            shown(str(progress.get("phase") or "evaluating")),
        )
        if self._console.is_terminal and isinstance(done, int | float) and isinstance(total, int | float):
            self._bar(phase, int(done), int(total), bytes_bar=False)
        elif self._due():
            self._say(f"{look['state']}: {phase} {done or 0}/{total or '?'}")

    def warned(self, warning: str) -> None:
        self.warnings.append(warning)
        self._say(f"warning: {shown(warning)}")

    def close(self) -> None:
        """Take the bar down."""
        self._end_bar()

    def _say(self, text: str) -> None:
        if not self._quiet:
            self._console.print(text, highlight=False, markup=False)

    def _due(self) -> bool:
        if time.monotonic() - self._said < EVERY:
            return False
        self._said = time.monotonic()
        return True

    def _bar(self, what: str, done: int, total: int, *, bytes_bar: bool) -> None:
        if self._quiet:
            return
        if self._progress is None:
            columns = (
                (DownloadColumn(), TransferSpeedColumn())
                if bytes_bar
                else (TextColumn("{task.completed}/{task.total}"),)
            )
            self._progress = Progress(
                TextColumn("{task.description}"), BarColumn(), *columns, TimeRemainingColumn(), console=self._console
            )
            self._progress.start()
            self._task = self._progress.add_task(what, total=total)
        assert self._task is not None
        self._progress.update(self._task, completed=done, total=total, description=what)

    def _end_bar(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = self._task = None
