"""Nouns -> the JSON documents of CONTRACT: one view of what a workflow returned. Keys are added, never renamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.model import Candidate, Checkpoint, Entry, Plan, Result, Run, Scan, Staged
from orchestrator.reports.envelope import Document, digests_body, estimate_body
from orchestrator.workflows.status import HostRow, RunRow, StatusReport

if TYPE_CHECKING:  # `orch status` renders too, and needs none of these
    from orchestrator.actions.runs import Cancelled
    from orchestrator.workflows.preflight import PreflightReport
    from orchestrator.workflows.rebuild import RebuildReport
    from orchestrator.workflows.runs import RunsReport
    from orchestrator.workflows.sync_harness import SyncReport

PROCESS_KEYS = ("state", "pid", "started_at", "user")
PROGRESS_KEYS = ("step", "epoch", "loss", "rate", "rate_unit", "age_s", "stalled")


def status_body(report: StatusReport) -> Document:
    """CONTRACT's `status`."""
    return {"hosts": [_host(row) for row in report.hosts], "runs": [_run_row(row) for row in report.runs]}


def _host(row: HostRow) -> Document:
    facts = row.facts or {}
    gpus = [{**gpu, "role": row.gpu_roles.get(gpu["index"])} for gpu in facts.get("gpus", ())]
    return {
        "name": row.host.name,
        "ok": row.error is None,
        "error": row.error.message if row.error else None,
        "transport": row.transport,
        "cpus": facts.get("cpus"),
        "load": facts["load"][0] if facts.get("load") else None,
        "memory": facts.get("memory"),
        "disk": facts.get("disk"),
        "gpus": gpus,
        "gpu_note": facts.get("gpu_note"),
    }


def _run_row(row: RunRow) -> Document:
    process, progress = row.process or {}, row.progress
    return {
        "name": row.run.name,
        "host": row.host,
        "process": {key: process.get(key) for key in PROCESS_KEYS} if row.process else None,
        "progress": {key: progress.get(key) for key in PROGRESS_KEYS} if progress else None,
        "source": row.source,
        "latest": latest(row.latest, row.latest_age),
        "steps_behind": row.steps_behind,
        "next_checkpoint_in_s": row.next_checkpoint_in,
        "skipped": [{"path": skipped.path, "reason": skipped.reason} for skipped in row.skipped],
        "harness": row.harness,
        "evaluations": [_evaluation(run, row.results.get(run.id)) for run in row.evaluations],
        "unevaluated": list(row.unevaluated),
        "remote_folder": [dict(entry) for entry in row.remote_folder],
    }


def _evaluation(run: Run, known: Entry | None) -> Document:
    headline = known.headline if known is not None else None
    return {"id": run.id, "step": run.step, "state": run.state, "headline": estimate_body(headline)}


def latest(checkpoint: Checkpoint | None, age: float | None) -> Document | None:
    """The short form of a checkpoint in `status`."""
    if checkpoint is None:
        return None
    return {"path": checkpoint.path, "step": checkpoint.step, "bytes": checkpoint.bytes, "age_s": age}


def checkpoint_body(checkpoint: Checkpoint) -> Document:
    """The long form of a checkpoint."""
    return {
        "path": checkpoint.path,
        "step": checkpoint.step,
        "bytes": checkpoint.bytes,
        "ship_bytes": checkpoint.ship_bytes,
        "identity": checkpoint.identity,
    }


def checkpoints_body(run: str, scan: Scan) -> Document:
    """CONTRACT's `checkpoints`; the scan's warnings go into the document's own."""
    return {
        "run": run,
        "host": scan.host,
        "root": scan.root,
        "layout": scan.layout,
        "latest": checkpoint_body(scan.latest) if scan.latest else None,
        "candidates": [_candidate(candidate) for candidate in scan.candidates],
    }


def _candidate(candidate: Candidate) -> Document:
    return {
        "path": candidate.path,
        "step": candidate.step,
        "state": candidate.state,
        "reason": candidate.reason or None,
    }


def staged_body(rows: Sequence[Staged], *, cleaned: bool = False) -> Document:
    """What lies on evaluation hosts; with `cleaned`, what became of it."""
    return {"staged": [_staged(row, cleaned) for row in rows]}


def _staged(row: Staged, cleaned: bool) -> Document:
    told = {"removed": row.removed, "why": row.why or None} if cleaned else {}
    return {
        "host": row.host,
        "identity": row.identity,
        "step": row.step,
        "bytes": row.bytes,
        "path": row.path,
        "source": row.source or None,
        "staged_at": row.staged_at,
        "state": "complete" if row.whole else "arriving",
        "used_by": list(row.used_by),
        **told,
    }


def runs_body(report: RunsReport) -> Document:
    """CONTRACT's `runs`, and which hosts answered."""
    hosts = [
        {"name": row.host.name, "ok": row.error is None, "error": row.error.message if row.error else None}
        for row in report.hosts
    ]
    return {"runs": [run_body(run) for run in report.runs], "hosts": hosts}


def run_body(run: Run) -> Document:
    """One row of `runs`."""
    return {
        "id": run.id,
        "job": run.job,
        "host": run.host,
        "run": run.run,
        "step": run.step,
        "state": run.state,
        "exit_code": run.exit_code,
        "signal": run.signal,
        "reason": run.reason or None,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
    }


def cancel_body(done: Cancelled) -> Document:
    """What became of a run that was to be cancelled."""
    return {"run": run_body(done.run), "before": done.before, "left": list(done.left)}


def sync_body(report: SyncReport) -> Document:
    """CONTRACT's `sync-harness`."""
    drift, pushed, pulled = report.drift, report.pushed, report.pulled
    return {
        "host": report.host.name,
        "state": drift.state,
        "local": drift.local.digest,
        "remote": drift.remote.digest if drift.remote else None,
        "base": drift.base.digest if drift.base else None,
        "files": [
            {"path": c.path, "change": c.change, "side": c.side, "renamed_from": c.renamed_from or None}
            for c in drift.files
        ],
        "pushed": list(pushed.paths) if pushed else [],
        "saved": pushed.saved if pushed else None,
        "pulled": list(pulled.paths) if pulled else [],
        "conflicts": list(pulled.conflicts) if pulled else list(drift.unresolved),
        "saved_here": pulled.saved if pulled else None,
    }


def preflight_body(report: PreflightReport) -> Document:
    """CONTRACT's `preflight`."""
    return {
        "job": report.job.name,
        "host": report.host.name,
        "run": report.run,
        "checks": [
            {"name": check.name, "state": check.state, "detail": check.detail, "hint": check.hint or None}
            for check in report.checks
        ],
    }


def plan_body(plan: Plan) -> Document:
    """CONTRACT's `plan` of eval-latest."""
    return {
        "checkpoint": checkpoint_body(plan.checkpoint) if plan.checkpoint else None,
        "actions": [
            {"do": action.do, "why": action.why, "bytes": action.bytes, "route": action.route or None}
            for action in plan.actions
        ],
        "refused": [{"reason": refusal.reason, "hint": refusal.hint} for refusal in plan.refused],
    }


def eval_body(plan: Plan | None, run: Run | None, result: Result | None) -> Document:
    """CONTRACT's `eval-latest`, as far as the command came."""
    return {"plan": plan_body(plan or Plan(checkpoint=None, actions=(), refused=())), **measured_body(run, result)}


def result_body(run: Run, result: Result) -> Document:
    """What a hook is told of a new result."""
    about = {"training_run": result.run, "job": result.job, "step": result.step, "ended_at": result.ended_at}
    return {**about, **measured_body(run, result)}


def measured_body(run: Run | None, result: Result | None) -> Document:
    """A run and its result, as far as there are any."""
    body: Document = {}
    if run is not None:
        body["run"] = {"id": run.id, "state": run.state, "exit_code": run.exit_code, "host": run.host, "step": run.step}
        body["run"]["held_by"] = run.rung or None
        body["digests"] = digests_body(run.digests)
    if result is not None:
        body["result"] = {
            "file": str(result.folder / result.file),
            "headline": _headline(result),
            "baseline": estimate_body(result.baseline),
            "verdict": result.verdict,
        }
        body["receipt"] = {"verdict": result.receipt.verdict, "reasons": list(result.receipt.reasons)}
    return body


def _headline(result: Result) -> Document | None:
    estimate = estimate_body(result.headline)
    return {"name": result.headline_name, **estimate} if estimate else None


def rebuild_body(report: RebuildReport) -> Document:
    """What `orch ledger rebuild` did."""
    return {
        "results": report.results,
        "collected": [{"host": host, "id": run_id} for host, run_id in report.collected],
        "unreachable": [{"host": error.host or None, "error": error.message} for error in report.unreachable],
    }
