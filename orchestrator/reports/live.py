"""What a person sees of eval-latest while it happens, on stderr: the plan, a bar for bytes, a bar for prompts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

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

from orchestrator.actions.harness_diff import FileDiff
from orchestrator.amounts import duration, size, throughput
from orchestrator.answers import Json
from orchestrator.model import Drift, Job, Plan, Result, Run, Scan
from orchestrator.reports import tables
from orchestrator.reports.text import shown

EVERY = 10.0
"""seconds between two lines where there is no terminal"""
DIFF_LIMIT = 60
"""lines of difference shown before the plan; sync-harness shows all"""


def _count(value: object) -> int | None:
    """A number from a host's progress file; whatever else an evaluation writes there is no count."""
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**63 else None


class Live:
    """A Listener of eval-latest (see workflows/eval_latest.py). It remembers what it heard: `--json` prints that."""

    def __init__(
        self,
        console: Console,
        *,
        quiet: bool,
        stays: bool = True,
        on_result: Callable[[Run, Result], Sequence[str]] = lambda run, result: (),
    ) -> None:
        """`console` takes the plan and what follows; `quiet` keeps all of it back; it `stays` unless the run is
        only started. `on_result` returns warnings."""
        self._on_result = on_result
        self.plan: Plan | None = None
        self.run: Run | None = None
        self.job: Job | None = None
        self.again = ""
        """what to type to come back to the run"""
        self.warnings: list[str] = []
        self._console = console
        self._quiet = quiet
        self._stays = stays
        self._line = ""
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._began = self._said = time.monotonic()
        self._moving: tuple[float, int] | None = None
        """when shipping was first heard of, and the bytes that were there by then"""
        self._whole = False
        """whether the last line about shipping said that all bytes are there"""

    def planned(self, plan: Plan, drift: Drift, diffs: tuple[FileDiff, ...], scan: Scan | None) -> None:
        self.plan = plan
        if self._quiet:
            return
        for row in scan.candidates if scan else ():
            if row.state in ("writing", "torn") and plan.checkpoint and (row.step or 0) > plan.checkpoint.step:
                self._say(f"passed over {shown(row.path)}: {row.state}: {shown(row.reason)}")
        if diffs:
            tables.print_to(self._console, tables.diff_lines(diffs, drift, limit=DIFF_LIMIT))
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
        whole, due = done >= total, self._due()
        if (due or whole) and not (whole and self._whole):
            self._whole = whole
            pace = f", {throughput(speed)}" if speed else ""
            left = f", {duration((total - done) / speed)} left" if speed and done < total else ""
            self._say(f"shipping {size(done)} of {size(total)}{pace}{left}")

    def started(self, run: Run, job: Job, again: str) -> None:
        self.run, self.job, self.again = run, job, again
        self._end_bar()
        self._began = time.monotonic()
        if run.goes_on:
            leaving = "; Ctrl-C leaves it going" if self._stays else ""
            self._say(f"run {run.id} on {run.host}{leaving}. To come back: {again}")
            if run.rung:
                self._say(f"held by: {shown(run.rung)}")

    def looked(self, look: Json) -> None:
        progress = look.get("progress") or {}
        done, total = _count(progress.get("done")), _count(progress.get("total"))
        phase = shown(str(progress.get("phase") or "evaluating"))
        lines = [line for line in str(look.get("log") or "").splitlines() if line.strip()]
        self._line = shown(lines[-1].strip(), limit=100) if lines else self._line
        if self._console.is_terminal and done is not None and total is not None:
            self._bar(phase, done, total, bytes_bar=False)
        elif self._due():
            where = f"{phase} {done}/{total}" if done is not None and total is not None else self._line
            where = shown(look["reason"]) if look["state"] == "queued" and look.get("reason") else where
            lasted = duration(time.monotonic() - self._began)
            self._say(f"{shown(look['state'])}, followed for {lasted}{': ' if where else ''}{where}")

    def measured(self, run: Run, result: Result) -> None:
        for warning in self._on_result(run, result):
            self.warned(warning)

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
            self._task = self._progress.add_task(what, total=total, completed=done)  # what is there is no speed
        assert self._task is not None
        self._progress.update(self._task, completed=done, total=total, description=what)

    def _end_bar(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = self._task = None
