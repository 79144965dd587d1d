"""The story of `orch eval-latest`: observe, plan, sync, ship, launch, follow, collect.

Every step looks before it acts, so the cure for any interruption is the same command again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Protocol

from orchestrator import config, measures, receipts
from orchestrator import plan as planning
from orchestrator.actions import launched, receipt_files, runs, torn
from orchestrator.actions.harness_diff import FileDiff
from orchestrator.actions.ledger import Ledger
from orchestrator.actions.runs import Reading
from orchestrator.answers import Json
from orchestrator.errors import EvaluationFailed, OrchError, Refused, TornCheckpoint, TrainingDisturbed
from orchestrator.keeping import state_folder
from orchestrator.model import Action, Checkpoint, Drift, Entry, Inventory, Job, Plan, Result, Run, Scan
from orchestrator.ssh.choose import Connections
from orchestrator.workflows import reading, witnessing
from orchestrator.workflows.acting import launch, plan_for, ship, sync
from orchestrator.workflows.collecting import bring_home, collect, earlier, known_result, look_again
from orchestrator.workflows.following import follow
from orchestrator.workflows.preflight import refuse_what_does_not_fit
from orchestrator.workflows.scene import Options, Scene, observe, wanted_checkpoint
from orchestrator.workflows.sync_harness import Consent

MARGIN = 5.0
"""seconds before the end of the aftermath at which training is looked at"""
ENDED = {
    "succeeded": "already evaluated",
    "failed": "it failed",
    "cancelled": "it was cancelled",
    "refused": "it was refused",
    "lost": "it is lost",
}
"""a run that was begun earlier, in words"""
__all__ = ["EvalReport", "Listener", "Options", "eval_latest", "failure"]


class Listener(Protocol):
    """Hears what happens while it happens; what it is told also makes the document of a command that fails."""

    def planned(self, plan: Plan, drift: Drift, diffs: tuple[FileDiff, ...], scan: Scan | None) -> None: ...
    def moved(self, done: int, total: int) -> None: ...
    def started(self, run: Run, job: Job, again: str) -> None: ...
    def looked(self, look: Json) -> None: ...
    def measured(self, run: Run, result: Result) -> None: ...
    def warned(self, warning: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """How it ended. What a dry run or a detached start does not reach is None."""

    plan: Plan
    run: Run | None = None
    result: Result | None = None
    history: tuple[Entry, ...] = ()
    """other results of the same job on the same training run"""


def eval_latest(
    inventory: Inventory, options: Options, connections: Connections, consent: Consent, listener: Listener
) -> EvalReport:
    """Evaluate the latest complete checkpoint of a run (or `step`).

    Raises NothingToEvaluate, Refused, HostUnreachable, TransferError, EvaluationFailed, TrainingDisturbed.
    """
    return _evaluate(inventory, options, connections, consent, listener, [])


def _evaluate(
    inventory: Inventory,
    options: Options,
    connections: Connections,
    consent: Consent,
    listener: Listener,
    windows: list[dict[str, Any]],
) -> EvalReport:
    """`windows` are those of an attempt that met a torn checkpoint."""
    scene = observe(inventory, options, connections)
    for warning in scene.warnings:
        listener.warned(warning)
    if (begun := _begun(scene)) is not None:
        return go_on(scene, begun, connections, listener)
    checkpoint = wanted_checkpoint(scene)
    plan, diffs = plan_for(scene, checkpoint, consent, connections)
    listener.planned(plan, scene.drift, diffs, scene.scan)
    if options.dry_run:
        return EvalReport(plan=plan)
    if plan.refused:
        reasons = "; ".join(refusal.reason for refusal in plan.refused)
        raise Refused(reasons, hint=plan.refused[0].hint, host=scene.evaluate.name)
    Ledger.at_home().close()  # where the result can't be kept, hours of evaluation had better not begin
    env, secrets = config.resolve_env(scene.job)
    if plan.action("sync") and scene.drift.overwrites_unknown and not consent(scene.drift, diffs):
        refusal = planning.drift_refusal(scene.drift, scene.evaluate, scene.job)
        listener.planned(replace(plan, refused=(refusal,)), scene.drift, (), None)
        raise Refused(refusal.reason, hint=refusal.hint, host=scene.evaluate.name)
    try:
        _act(scene, plan, checkpoint, connections, listener, windows)
    except TornCheckpoint as error:
        torn.remember(state_folder(), checkpoint, error.message)
        other = "the next older one" if options.step is None else "another one of that step"
        listener.warned(f"step {checkpoint.step} ({checkpoint.path}) is {error.message}; looking for {other}")
        return _evaluate(inventory, options, connections, consent, listener, windows)
    run = launch(scene, checkpoint, windows, env, secrets, connections)
    listener.started(run, scene.job, _again(scene, run))
    if options.detach:
        return EvalReport(plan=plan, run=_outlives(scene, run, connections))
    return _finish(scene, plan, run, connections, listener, [])


# -- a run that was begun earlier --------------------------------------------------------------------------------


def _begun(scene: Scene) -> Run | None:
    """The run that this command means although it was begun earlier, by somebody who left or is still there.

    An unfinished one is joined even when a newer checkpoint has appeared since: the command that started it promised
    so. A finished one is the answer if it is of the very checkpoint that would be evaluated now, or of `--step`.
    """
    mine = scene.runs_of_this()
    unfinished = next((run for run in mine if run.goes_on), None)
    if unfinished is not None:
        return unfinished
    latest = scene.scan.latest.identity if scene.scan and scene.scan.latest else None
    if latest is None and scene.options.step is None:
        return None
    done = (run for run in mine if run.state == "succeeded" and latest in (None, run.checkpoint))
    return None if scene.options.again else next(done, None)


def go_on(scene: Scene, run: Run, connections: Connections, listener: Listener) -> EvalReport:
    """Follow a run that is there already and bring it home, or answer with what it measured."""
    found = scene.scan.latest if scene.scan else None
    same = found if found is not None and found.identity == run.checkpoint else None
    if not run.goes_on:
        action = Action(do="nothing", why=f"{ENDED[run.state]}: run {run.id} of step {run.step}")
    else:
        newer = "" if same or found is None else f"; step {found.step} is newer, and next"
        action = Action(do="join", why=f"run {run.id} of step {run.step} is {run.state}{newer}")
    plan = Plan(checkpoint=same, actions=(action,), refused=())
    launched.remember(state_folder(), run)
    listener.planned(plan, scene.drift, (), scene.scan)
    listener.started(run, scene.job, _again(scene, run))
    if scene.options.dry_run or (scene.options.detach and action.do == "join"):
        return EvalReport(plan=plan, run=run)
    if action.do == "nothing" and (known := known_result(scene, run)) is not None:
        _warn_of(known, listener)
        _bring_home(scene, connections, listener)
        return EvalReport(plan=plan, run=run, result=known, history=earlier(scene, run.id))
    return _finish(scene, plan, run, connections, listener, [scene.window()])


def _again(scene: Scene, run: Run) -> str:
    """What to type to come back to this very run. eval-latest means another one once harness, job or data differ."""
    if run.digests != scene.digests(run.checkpoint):
        return scene.inventory.typed("attach", run.id)
    words = ["eval-latest", scene.run.name, "--step", str(run.step)]
    words += ["--job", scene.options.job] if scene.options.job else []
    words += ["--host", scene.options.host] if scene.options.host else []
    return scene.inventory.typed(*words)


# -- act ---------------------------------------------------------------------------------------------------------


def _act(
    scene: Scene,
    plan: Plan,
    checkpoint: Checkpoint,
    connections: Connections,
    listener: Listener,
    windows: list[dict[str, Any]],
) -> None:
    """Sync and ship as planned; adds to `windows` those in which orch acted on the training box.

    Raises TornCheckpoint where a record of the checkpoint does not fit its CRC.
    """
    windows.append(scene.window())
    if plan.action("sync"):
        sync(scene, connections, listener.warned)
    if plan.action("ship"):
        refuse_what_does_not_fit(scene, connections)
        witness = witnessing.begin(scene, connections)
        try:
            account = ship(scene, checkpoint, scene.training, plan.routes, connections, listener.moved, listener.warned)
        except OrchError:
            windows.append(witnessing.end(witness, scene, connections))
            told = receipts.receipt(windows)
            if told.verdict == "changed":
                listener.warned("; ".join(told.reasons))
            raise
        _tell_pace(account.get("pace") or {}, listener)
        windows.append(witnessing.end(witness, scene, connections))


def _tell_pace(pace: Json, listener: Listener) -> None:
    if pace.get("backed_off"):
        held_back = f"shipping went {pace['backed_off']} times slower so that the training did not wait for it"
        listener.warned(f"{held_back}, {pace['slept']:.0f} s in all")


def _outlives(scene: Scene, run: Run, connections: Connections) -> Run:
    """The run as another connection finds it: what a logout kills is noticed before anybody relies on it."""
    connections.forget(scene.evaluate)
    there = runs.list_runs(connections.to(scene.evaluate), scene.evaluate, scene.inventory.timeouts)
    return next((row for row in there if row.id == run.id), launched.gone(run))


def _finish(
    scene: Scene, plan: Plan, run: Run, connections: Connections, listener: Listener, looks: list[dict[str, Any]]
) -> EvalReport:
    """Follow a run to its end and bring it home; `looks` are this command's windows so far."""
    if run.goes_on:
        run = _follow(scene, run, connections, listener, looks)
    result = collect(scene, run, connections, looks) if run.folder else None
    if result is not None:
        listener.measured(run, result)
        _warn_of(result, listener)
    elif run.folder:  # it failed, which the command ends with; what training did is said all the same
        kept = receipt_files.find(state_folder(), f"{run.host}/{run.id}")
        if kept["verdict"] == "changed":
            listener.warned("; ".join(kept["reasons"]))
    _bring_home(scene, connections, listener)
    return EvalReport(plan=plan, run=run, result=result, history=earlier(scene, run.id))


def _warn_of(result: Result, listener: Listener) -> None:
    if lacks := reading.doubt(result):
        listener.warned(lacks)


def _bring_home(scene: Scene, connections: Connections, listener: Listener) -> None:
    for run, result in bring_home(scene, connections):
        listener.measured(run, result)


def _follow(scene: Scene, run: Run, connections: Connections, listener: Listener, looks: list[dict[str, Any]]) -> Run:
    """To the end of the run, taking the connection up again when it is lost, however long the way is gone.

    Once on the way, when the aftermath of shipping ends, training is looked at: what dies later died by itself.
    """
    seen, aftermath = len(looks), time.monotonic() + measures.AFTERMATH - MARGIN

    def looked(look: Json) -> None:
        listener.looked(look)
        if len(looks) == seen and time.monotonic() > aftermath:
            looks.append(look_again(scene, connections, "observe"))

    return follow(
        run,
        scene.evaluate,
        connections,
        scene.inventory.timeouts,
        Reading(),
        on_look=looked,
        warned=listener.warned,
        again=_again(scene, run),
    )


def failure(report: EvalReport) -> OrchError | None:
    """The error that a report amounts to, if any: the evaluation failed, or training changed meanwhile."""
    run = report.run
    if run is not None and run.state in ("failed", "lost", "cancelled", "refused"):
        log = f"orch logs {run.id} shows its log; " if run.folder and run.state != "refused" else ""
        hint = f"{log}orch rerun {run.id} tries again"
        return EvaluationFailed(f"run {run.id} {run.state}: {run.how_it_ended}", hint=hint, host=run.host)
    if report.result is not None and report.result.receipt.verdict == "changed":
        return TrainingDisturbed("; ".join(report.result.receipt.reasons), hint="orch status shows how training stands")
    return None
