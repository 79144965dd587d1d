"""Nouns -> what a person reads: rich tables and lines. Text from hosts passes `shown`, which escapes and caps it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.amounts import ago, duration, size
from orchestrator.errors import OrchError, RemotePythonError
from orchestrator.model import Drift, Entry, Host, Plan, Result, Run, Scan, Staged
from orchestrator.records import entry_of
from orchestrator.reports.text import measured, rate, shown
from orchestrator.workflows.status import HostRow, RunRow, StatusReport

if TYPE_CHECKING:  # `orch status` renders too, and needs none of these
    from orchestrator.actions.harness_diff import FileDiff
    from orchestrator.workflows.preflight import PreflightReport
    from orchestrator.workflows.runs import RunsReport

NEWEST = 20
"""runs of a host, or steps to evaluate, that are shown unless all are wanted"""
EVALUATIONS = 5
"""newest evaluations of a run that `orch status` shows"""
STYLES = {"running": "green", "succeeded": "green", "in_sync": "green", "complete": "green", "undisturbed": "green"}
HARNESS = {
    "in_sync": "in_sync with the local one",
    "local_ahead": "local_ahead: yours is newer; the next sync brings it there",
    "remote_edited": "remote_edited: it was edited there since the last sync",
    "both": "both: edited here and there since the last sync",
    "absent": "absent: not there yet",
}
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def status_table(report: StatusReport) -> RenderableType:
    """Boxes, then one block a training run."""
    blocks = [block for run in report.runs for block in ("", _title(run), _run(run))]
    return Group(_hosts(report.hosts), *_unreachable(report.hosts), *blocks)


def _hosts(rows: Sequence[HostRow]) -> Table:
    table = _table("host", "cpu", "load", "memory free", "disk free", "gpus")
    for row in rows:
        if row.facts is None:
            table.add_row(row.host.name, Text(_why_no_facts(row.host, row.error), style="red"))
            continue
        facts = row.facts
        memory, disk, load = facts["memory"], facts["disk"], facts["load"]
        table.add_row(
            row.host.name,
            str(facts["cpus"]),
            f"{load[0]:.1f}" if load else "?",
            f"{size(memory['available'])} of {size(memory['total'])}",
            f"{size(disk['free'])} of {size(disk['total'])}",
            _gpus(row),
        )
    return table


def _why_no_facts(host: Host, error: OrchError | None) -> str:
    """Short: the host may well have answered, and have no such python."""
    if isinstance(error, RemotePythonError):
        return shown(error.message.removeprefix(f"{host.name}: "), limit=60)
    return "no answer"


def _unreachable(rows: Sequence[HostRow]) -> Iterator[Text]:
    for row in rows:
        if row.error is not None:
            yield Text(shown(row.error.message, limit=600), style="red")


def _gpus(row: HostRow) -> Text:
    facts = row.facts or {}
    if not facts.get("gpus"):
        return Text(shown(facts.get("gpu_note") or "none"), style="dim")
    groups: dict[str, list[str]] = {}
    for gpu in facts["gpus"]:
        role = row.gpu_roles.get(gpu["index"], "")
        busy = "?" if gpu["utilisation"] is None else f"{gpu['utilisation']}%"
        groups.setdefault(role, []).append(f"{gpu['index']}:{busy}")
    return Text("; ".join(f"{role} {' '.join(parts)}".strip() for role, parts in groups.items()))


def _title(row: RunRow) -> Text:
    return Text.assemble((row.run.name, "bold"), f" on {row.host}")


def _run(row: RunRow) -> Table:
    """A grid of label and value; long values wrap below themselves."""
    grid = Table.grid(padding=(0, 2), pad_edge=True)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in _run_lines(row) if row.seen else [("not seen", f"{row.host} could not be asked")]:
        grid.add_row(label, Text(shown(value, limit=400), style=STYLES.get(value.split(" ", 1)[0], "")))
    for label, value in _evaluation_lines(row):
        grid.add_row(label, Text(shown(value, limit=400), style=STYLES.get(value.split(" ", 1)[0], "")))
    return grid


def _run_lines(row: RunRow) -> Iterator[tuple[str, str]]:
    yield "process", _process(row)
    yield "progress", _progress(row)
    if row.latest is None:
        yield "checkpoint", "none complete"
    else:
        age = f", written {ago(row.latest_age)}" if row.latest_age is not None else ""
        behind = f", training is {row.steps_behind} steps past it" if row.steps_behind is not None else ""
        yield "checkpoint", f"step {row.latest.step} ({row.latest.path}, {size(row.latest.bytes)}){age}{behind}"
    if row.next_checkpoint_in is not None:
        yield "next", f"due in {duration(row.next_checkpoint_in)}"
    for skipped in row.skipped:
        yield "passed over", f"{skipped.path}: {skipped.state}: {skipped.reason}"
    if row.source:
        dirty = row.source.get("dirty") or "clean"
        yield "source", str(row.source.get("error") or f"commit {row.source.get('commit')}, {dirty}")


def _evaluation_lines(row: RunRow) -> Iterator[tuple[str, str]]:
    yield "harness", HARNESS.get(row.harness, f"{row.harness}: {row.harness_why}")
    earlier = len(row.evaluations) - EVALUATIONS
    for run in row.evaluations[-EVALUATIONS:]:
        ended = f", {run.ended_at}" if run.ended_at else ""
        reason = f": {run.reason}" if run.reason else ""
        known = row.results.get(run.id)
        headline = f", {known.headline_name} {measured(known.headline)}" if known and known.headline else ""
        if run.id in row.unread:
            headline = f", no result that can be read (orch attach {run.id} says why)"
        yield "evaluation", f"{run.state} step {run.step}{headline}, job {run.job}, run {run.id}{ended}{reason}"
    if earlier > 0:
        yield "", f"and {earlier} earlier: orch runs"
    if row.unevaluated or row.unproven:
        yield "to evaluate", _to_evaluate(row)
    for entry in row.remote_folder[:20]:
        headline = f", headline {entry['headline']}" if entry.get("headline") is not None else ""
        yield (
            "also there",
            f"{entry['path']} ({entry['kind']}, {size(entry['bytes'])}, {entry['modified_at']}{headline})",
        )


def _to_evaluate(row: RunRow) -> str:
    older = len(row.unevaluated) - NEWEST
    parts = ["step " + ", ".join(map(str, row.unevaluated[-NEWEST:]))] if row.unevaluated else []
    parts += [f"{older} older"] if older > 0 else []
    parts += [f"{row.unproven} older not looked into"] if row.unproven else []
    return " and ".join(parts)


def _process(row: RunRow) -> str:
    process = row.process
    if process is None:
        return "could not be looked for" if row.run.process else "not named in hosts.yaml (process:)"
    if process.get("pid") is None:
        pids = ", ".join(str(match.get("pid")) for match in process.get("matches") or ())
        return f"{process['state']} {process.get('reason') or ''}{f' (pid {pids})' if pids else ''}".strip()
    return f"{process['state']} pid {process['pid']}, since {process['started_at']}, user {process['user']}"


def _short(value: float | str) -> str:
    """A number; a loss that is none comes as the word nan or inf, for JSON has no such numbers."""
    return f"{value:g}" if isinstance(value, float | int) else shown(value, 20)


def _progress(row: RunRow) -> str:
    progress = row.progress
    if progress is None:
        return "no progress line could be read" if row.run.log else "no log named in hosts.yaml (log:)"
    parts = [f"step {progress['step']}"] if progress.get("step") is not None else []
    parts += [f"{key} {_short(progress[key])}" for key in ("epoch", "loss") if progress.get(key) is not None]
    if progress.get("rate") is not None:
        parts.append(rate(progress["rate"], progress.get("rate_unit") or ""))
    if progress.get("age_s") is not None:
        parts.append(f"last moved {ago(progress['age_s'])}")
    return "  ".join(parts) + ("  STALLED" if progress.get("stalled") else "")


def checkpoints_table(scan: Scan) -> RenderableType:
    """Every candidate with its state and reason."""
    table = _table("step", "path", "state", "reason")
    for row in sorted(scan.candidates, key=lambda candidate: -(candidate.step or -1)):
        step = "" if row.step is None else str(row.step)
        table.add_row(step, shown(row.path), Text(row.state, style=STYLES.get(row.state, "")), shown(row.reason))
    return table


def staged_table(rows: Sequence[Staged], *, cleaned: str = "") -> RenderableType:
    """What lies on evaluation hosts; `cleaned`: the word for what was removed, where it is told what became of it."""
    table = _table("host", "step", "bytes", "staged", "from", "outcome" if cleaned else "used by")
    for row in rows:
        came = row.staged_at or "arriving"
        last = (f"kept: {shown(row.why)}" if row.why else cleaned) if cleaned else ", ".join(map(shown, row.used_by))
        step = "" if row.step is None else str(row.step)
        table.add_row(row.host, step, size(row.bytes), shown(came), shown(row.source), last)
    return table


def runs_table(report: RunsReport, *, everything: bool = False) -> RenderableType:
    """Runs host by host, the newest last; a host that did not answer is a row."""
    table = _table("run", "host", "step", "job", "state", "started", "ended", "reason")
    for outcome in report.hosts:
        rows = outcome.value or ()
        for run in rows if everything else rows[-NEWEST:]:
            state = Text(run.state, style=STYLES.get(run.state, "" if run.state == "queued" else "red"))
            times = (run.started_at or "", run.ended_at or "")
            table.add_row(shown(run.id), run.host, str(run.step), shown(run.job), state, *map(shown, times), _why(run))
        if outcome.error is not None:
            table.add_row(
                "",
                outcome.host.name,
                "",
                "",
                Text("not usable" if isinstance(outcome.error, RemotePythonError) else "no answer", style="red"),
                "",
                "",
                shown(outcome.error.message),
            )
    return table


def _why(run: Run) -> str:
    code = f"exit {run.exit_code}" if run.exit_code else f"signal {run.signal}" if run.signal else ""
    return shown(run.reason or code)


def diff_lines(diffs: Sequence[FileDiff], drift: Drift, limit: int | None = None) -> RenderableType:
    """What differs: one line a file, then the unified diff of each; with `limit`, at most that many lines in all."""
    text = Text()
    lines = list(_diff_lines(diffs)) or [(drift.state, STYLES.get(drift.state, ""))]
    for line, style in lines[:limit]:
        text.append(line + "\n", style=style)
    if limit is not None and len(lines) > limit:
        text.append(f"... {len(lines) - limit} more lines: orch sync-harness --check shows all\n", style="dim")
    return text


def _diff_lines(diffs: Sequence[FileDiff]) -> Iterator[tuple[str, str]]:
    moved = {(diff.change.renamed_from, "deleted") for diff in diffs}
    for diff in diffs:
        change = diff.change
        if (change.path, change.change) in moved:
            continue
        if change.renamed_from:
            yield f"renamed   {shown(change.renamed_from)} -> {shown(change.path)}  [{change.side}]", "bold"
            continue
        new = change.change == "added" and not diff.lines
        note = " (left alone)" if change.change == "extra" else f" {size(diff.size)}" if new else ""
        yield f"{change.change:<9} {shown(change.path)}  [{change.side}]{note}", "bold"
        yield from ((shown(line, limit=500), DIFF_STYLES.get(line[:1], "")) for line in diff.lines)


def preflight_table(report: PreflightReport) -> RenderableType:
    """Every check, with what would help where it fails."""
    table = _table("check", "state", "detail")
    for check in report.checks:
        style = {"ok": "green", "fail": "red"}.get(check.state, "dim")
        table.add_row(shown(check.name), Text(check.state, style=style), Text(shown(check.detail, limit=600)))
        if check.hint:
            table.add_row("", "", Text(shown(check.hint, limit=400), style="dim"))
    return table


def plan_lines(plan: Plan) -> RenderableType:
    """The plan, one line an action."""
    text = Text()
    checkpoint = plan.checkpoint
    if checkpoint is not None:
        text.append(
            f"checkpoint  step {checkpoint.step}  {shown(checkpoint.path)} on {checkpoint.host}\n", style="bold"
        )
    for action in plan.actions:
        text.append("nothing to do: " if action.do == "nothing" else f"{action.do:<8}", style="cyan")
        moved = f"  {size(action.bytes)}" if action.bytes else ""
        route = f"  {action.route}" if action.route else ""
        text.append(f"{shown(action.why)}{moved}{route}\n")
    for refusal in plan.refused:
        text.append("refused ", style="red")
        text.append(f"{shown(refusal.reason, limit=2000)}\n        {shown(refusal.hint, limit=1000)}\n")
    return text


def results_table(result: Result, history: Sequence[Entry]) -> RenderableType:
    """This result among the others of its run, and its baseline."""
    mine = entry_of(result)
    table = _table("step", mine.headline_name or "headline", "baseline", "verdict", "training", "host", "run")
    rows = sorted((*history, mine), key=lambda row: (row.step, row.ended_at))
    for row in rows[-12:]:
        table.add_row(
            str(row.step),
            measured(row.headline),
            measured(row.baseline),
            (row.verdict or "-") + ("" if row.same_measure(mine) else " (other harness or data)"),
            Text(row.receipt, style=STYLES.get(row.receipt, "red")),
            row.host,
            row.id,
            style="bold" if row is mine else "",
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def print_to(console: Console, what: RenderableType) -> None:
    """Print without highlighting: what is red or green was meant so."""
    console.print(what, highlight=False, markup=False)
