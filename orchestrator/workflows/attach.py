"""The stories of `orch attach`, `orch rerun` and `orch logs`: coming back to a run by its id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from orchestrator.actions import launched
from orchestrator.actions.runs import Reading
from orchestrator.answers import Json
from orchestrator.errors import ConfigError, EvaluationFailed, Refused
from orchestrator.keeping import state_folder
from orchestrator.model import Inventory, Run
from orchestrator.ssh.choose import Connections
from orchestrator.workflows.eval_latest import EvalReport, Listener, eval_latest, go_on
from orchestrator.workflows.following import follow
from orchestrator.workflows.runs import find_run
from orchestrator.workflows.scene import Options, observe
from orchestrator.workflows.sync_harness import Consent


def attach(
    inventory: Inventory, word: str, host_name: str | None, connections: Connections, listener: Listener
) -> EvalReport:
    """Follow a run to its end, as the command that started it would have, and bring it home.

    A training box that can't be reached is one that was not seen: the receipt says so.

    Raises what `find_run` and eval-latest raise; ConfigError for a run whose training run or job is not known here.
    """
    run = find_run(inventory, word, host_name, connections)
    if not run.folder:
        raise EvaluationFailed(_gone(run), hint=f"orch rerun {run.id} evaluates again", host=run.host)
    scene = observe(inventory, _options(inventory, run), connections, without_training=True)
    for warning in scene.warnings:
        listener.warned(warning)
    return go_on(scene, run, connections, listener)


def rerun(
    inventory: Inventory,
    word: str,
    host_name: str | None,
    connections: Connections,
    consent: Consent,
    listener: Listener,
    *,
    detach: bool = False,
    dry_run: bool = False,
    allow_on_training_host: bool = False,
) -> EvalReport:
    """Evaluate the checkpoint of a run once more: a new run, with the harness and the job as they are here now.

    Raises Refused for a run that has not ended, and all that eval-latest raises.
    """
    run = find_run(inventory, word, host_name, connections)
    if run.goes_on:
        hint = f"orch attach {run.id} follows it; orch cancel {run.id} ends it"
        raise Refused(f"run {run.id} is {run.state}", hint=hint, host=run.host)
    options = replace(
        _options(inventory, run),
        again=True,
        checkpoint=run.checkpoint,
        detach=detach,
        dry_run=dry_run,
        allow_on_training_host=allow_on_training_host,
    )
    return eval_latest(inventory, options, connections, consent, listener)


def _options(inventory: Inventory, run: Run) -> Options:
    if run.run not in inventory.runs:
        hint = f"orch logs -f {run.id} follows it all the same"
        raise ConfigError(f"run {run.id} is of training run {run.run}, which {inventory.path.name} lacks", hint=hint)
    return Options(run=run.run, job=run.job, step=run.step, host=run.host)


def _gone(run: Run) -> str:
    return f"run {run.id} {run.state}: {run.reason or launched.GONE.format(host=run.host)}"


def logs(
    inventory: Inventory,
    word: str,
    host_name: str | None,
    reading: Reading,
    connections: Connections,
    *,
    found: Callable[[Run], None],
    on_look: Callable[[Json], None],
    warned: Callable[[str], None],
) -> Run:
    """Read a run's log, and follow it as long as `reading` says. `found` hears which run is meant.

    Of a run that its host no longer has, the end of the log is read from this computer's copy.
    """
    run = find_run(inventory, word, host_name, connections)
    found(run)
    if not run.folder:
        on_look(_kept(run))
        return run
    host = inventory.hosts[run.host]
    again = inventory.typed("logs", *(["-f"] if reading.within is None else []), run.id)
    return follow(run, host, connections, inventory.timeouts, reading, on_look=on_look, warned=warned, again=again)


def _kept(run: Run) -> Json:
    """What a look at the log would have told, from the small files that were collected."""
    folder = launched.place(state_folder(), run)
    if folder is None or not (file := folder / "log.tail").exists():
        raise EvaluationFailed(_gone(run), hint=f"orch rerun {run.id} evaluates again", host=run.host)
    text = file.read_text(encoding="utf-8", errors="replace")
    return {"log": text, "place": {"offset": len(text.encode())}, "skipped": 0, "notes": [f"from {file}"]}
