"""The story of `orch eval-latest`: observe, plan, sync, ship, launch, follow, collect.

Every step looks before it acts, so the cure for any interruption is the same command again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from orchestrator import config, routes
from orchestrator import plan as planning
from orchestrator.actions import comparison, harness, runs, staging, torn, training
from orchestrator.actions.harness import FileDiff
from orchestrator.actions.ledger import Ledger, state_folder
from orchestrator.actions.observation import EvalFacts, HostFacts
from orchestrator.answers import Json
from orchestrator.errors import (
    ConfigError,
    ConnectionLost,
    EvaluationFailed,
    NothingToEvaluate,
    OrchError,
    Refused,
    TornCheckpoint,
    TrainingDisturbed,
)
from orchestrator.model import (
    Checkpoint,
    Digests,
    Drift,
    Harness,
    Host,
    Inventory,
    Job,
    Plan,
    Receipt,
    Refusal,
    Result,
    Route,
    Run,
    Scan,
    TrainingRun,
)
from orchestrator.ssh.choose import Connections
from orchestrator.workflows.look import Look, look_at
from orchestrator.workflows.sync_harness import Consent, differences

RECONNECTS = 30
"""how often following is taken up again after a lost connection, with growing pauses, before giving up"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line asks for."""

    run: str | None = None
    job: str | None = None
    step: int | None = None
    host: str | None = None
    yes: bool = False
    dry_run: bool = False
    detach: bool = False
    allow_on_training_host: bool = False


class Listener(Protocol):
    """Hears what happens while it happens; what it is told also makes the document of a command that fails."""

    def planned(self, plan: Plan, drift: Drift, diffs: tuple[FileDiff, ...], scan: Scan) -> None: ...
    def moved(self, done: int, total: int) -> None: ...
    def started(self, run: Run, job: Job, digests: Digests) -> None: ...
    def looked(self, look: Json) -> None: ...
    def warned(self, warning: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """How it ended. What a dry run or a detached start does not reach is None."""

    plan: Plan
    run: Run | None = None
    result: Result | None = None
    history: tuple[Result, ...] = ()
    """earlier results of the same training run"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The boxes, the job and everything seen of them: what the steps after observing work on."""

    inventory: Inventory
    options: Options
    run: TrainingRun
    job: Job
    train: Host
    evaluate: Host
    ours: Harness
    scan: Scan
    checkpoint: Checkpoint
    train_facts: HostFacts
    facts: EvalFacts
    box: Json
    trains: bool
    drift: Drift
    digests: Digests


def eval_latest(
    inventory: Inventory, options: Options, connections: Connections, consent: Consent, listener: Listener
) -> EvalReport:
    """Evaluate the latest complete checkpoint of a run (or `step`); one that shipping finds torn is passed over.

    Raises NothingToEvaluate, Refused, HostUnreachable, TransferError, EvaluationFailed, TrainingDisturbed.
    """
    while True:
        scene = observe(inventory, options, connections, listener)
        try:
            return _evaluate(scene, connections, consent, listener)
        except TornCheckpoint as error:
            torn.remember(state_folder(), scene.checkpoint, error.message)
            listener.warned(f"step {scene.checkpoint.step} is {error.message}; looking for the next older one")


def _evaluate(scene: Scene, connections: Connections, consent: Consent, listener: Listener) -> EvalReport:
    """The steps after observing. Raises TornCheckpoint where a record of the checkpoint does not fit its CRC."""
    inventory, options = scene.inventory, scene.options
    before = _sample(scene, scene.train_facts)
    plan, diffs = make_plan(scene, connections)
    listener.planned(plan, scene.drift, diffs, scene.scan)
    if options.dry_run:
        return EvalReport(plan=plan)
    plan = _with_consent(scene, plan, diffs, consent)
    if plan.refused:
        first = plan.refused[0]
        raise Refused("; ".join(refusal.reason for refusal in plan.refused), hint=first.hint, host=scene.evaluate.name)
    if (known := plan.action("nothing")) is not None:
        return _already(scene, plan, known.why, connections, listener)
    windows = [training.window("observe", scene.train.name, before, before)]
    if plan.action("sync"):
        harness.push(connections.to(scene.evaluate), scene.evaluate, scene.job, scene.drift, inventory.timeouts)
    if plan.action("ship"):
        windows.append(_ship(scene, plan, before, connections, listener))
    run = _launch(scene, windows, connections)
    listener.started(run, scene.job, scene.digests)
    if options.detach:
        return EvalReport(plan=plan, run=run)
    run = _follow(scene, run, connections, listener)
    return _collect(scene, plan, run, connections, listener)


# -- observe -------------------------------------------------------------------------------------------------------


def observe(inventory: Inventory, options: Options, connections: Connections, listener: Listener) -> Scene:
    """Look at both boxes at once. Raises what a box that can't be reached raises."""
    run = config.choose_run(inventory, options.run)
    job = config.choose_job(inventory, run, options.job)
    evaluate = config.choose_eval_host(inventory, run, options.host)
    train = inventory.hosts[run.hosts[0]]
    ours = harness.local(job)
    there = tuple(other for other in inventory.runs.values() if evaluate.name in other.hosts)
    looks = [
        Look(host=train, runs=(run,), step=options.step, sample=True),
        Look(host=evaluate, job=job, local=ours, digest=True),
        *([Look(host=evaluate, runs=there)] if there and evaluate.name != train.name else ()),
    ]
    outcomes = look_at(looks, connections, inventory.timeouts)
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    train_facts, eval_facts = outcomes[0].value, outcomes[1].value
    assert train_facts is not None and eval_facts is not None and eval_facts.evaluation is not None
    for error in (*train_facts.runs[run.name].errors, *eval_facts.evaluation.errors):
        listener.warned(error)
    scan = train_facts.runs[run.name].scan
    if scan is None:
        raise ConfigError("; ".join(train_facts.runs[run.name].errors), host=train.name)
    for warning in scan.warnings:
        listener.warned(warning)
    checkpoint = wanted_checkpoint(scan, options.step)
    facts = eval_facts.evaluation
    neighbour = outcomes[-1].value if there else None
    digests = Digests(
        checkpoint=checkpoint.identity,
        harness=ours.digest,
        job=planning.job_digest(job),
        data=planning.data_digest(facts.data),
    )
    return Scene(
        inventory=inventory,
        options=options,
        run=run,
        job=job,
        train=train,
        evaluate=evaluate,
        ours=ours,
        scan=scan,
        checkpoint=checkpoint,
        train_facts=train_facts,
        facts=facts,
        box=eval_facts.host,
        trains=_trains(evaluate, train, train_facts, neighbour),
        drift=harness.drift(ours, facts.harness, facts.base, facts.extras),
        digests=digests,
    )


def wanted_checkpoint(scan: Scan, step: int | None) -> Checkpoint:
    """The one that the scan found. Raises NothingToEvaluate with a line for every candidate."""
    if scan.latest is not None:
        return scan.latest
    wanted = "checkpoint" if step is None else f"checkpoint of step {step}"
    rows = "".join(f"\n  {row.path}: {row.state}: {row.reason}" for row in scan.candidates)
    raise NothingToEvaluate(
        f"{scan.host}: no complete {wanted} under {scan.root}{rows}",
        hint="orch checkpoints lists every candidate with its reason",
        host=scan.host,
    )


def _trains(evaluate: Host, train: Host, train_facts: HostFacts, neighbour: HostFacts | None) -> bool:
    facts = train_facts if evaluate.name == train.name else neighbour
    if facts is None:
        return False
    states = {(run.process or {}).get("state") for run in facts.runs.values()}
    return bool(states & {"running", "stopped", "ambiguous", "hidden"})


# -- plan ----------------------------------------------------------------------------------------------------------


def make_plan(scene: Scene, connections: Connections) -> tuple[Plan, tuple[FileDiff, ...]]:
    """The plan, and the harness' difference for showing."""
    key = planning.run_key(scene.digests)
    side = planning.EvalSide(
        host=scene.evaluate,
        staged=scene.checkpoint.identity in scene.facts.staged,
        arriving=scene.facts.arriving.get(scene.checkpoint.identity, 0),
        runs=scene.facts.runs,
        same_run=next((row for row in reversed(scene.facts.runs) if row.key == key), None),
        disk_free=int(scene.box["disk"]["free"]),
        memory_available=int(scene.box["memory"]["available"]),
        missing=_missing(scene),
        trains=scene.trains,
    )
    plan = planning.make_plan(
        checkpoint=scene.checkpoint,
        drift=scene.drift,
        side=side,
        job=scene.job,
        allow_on_training_host=scene.options.allow_on_training_host,
        routes=() if side.staged else _routes(scene, connections),
    )
    diffs: tuple[FileDiff, ...] = ()
    if plan.action("sync"):
        connection = connections.to(scene.evaluate)
        diffs = differences(connection, scene.evaluate, scene.job, scene.drift, scene.inventory)
    return plan, diffs


def _ends(scene: Scene, connections: Connections) -> tuple[staging.End, staging.End]:
    source = staging.End(connection=connections.to(scene.train), host=scene.train, role="train")
    return source, staging.End(connection=connections.to(scene.evaluate), host=scene.evaluate, role="eval")


def _routes(scene: Scene, connections: Connections) -> tuple[Route, ...]:
    """The ways that a shipment may take, the best first. Raises Refused where the one that is asked for isn't there."""
    transfer = scene.run.transfer or scene.inventory.transfer
    source, target = _ends(scene, connections)
    ways = staging.ways(source, target, transfer, scene.inventory.timeouts)
    choice, why_not = routes.choose(transfer, ways, scene.run.limit_rate)
    if not choice:
        hint = "transfer: auto in hosts.yaml takes what there is"
        raise Refused(f"no way to ship: {'; '.join(why_not)}", hint=hint, host=scene.evaluate.name)
    return choice


def _with_consent(scene: Scene, plan: Plan, diffs: tuple[FileDiff, ...], consent: Consent) -> Plan:
    if plan.refused or not (plan.action("sync") and scene.drift.overwrites_unknown) or consent(scene.drift, diffs):
        return plan
    return replace(plan, refused=(planning.drift_refusal(scene.drift, scene.evaluate, scene.job),))


def _missing(scene: Scene) -> tuple[Refusal, ...]:
    host, facts = scene.evaluate, scene.facts
    missing = []
    for name, row in facts.data.items():
        if not row.get("exists"):
            hint = f"make it there, or change data.{name} in {scene.job.path.name}"
            missing.append(Refusal(reason=f"{host.name}: data.{name}: no {row.get('path')}", hint=hint))
        elif row.get("error"):
            missing.append(
                Refusal(reason=f"{host.name}: data.{name}: {row['error']}", hint="orch status shows the host")
            )
    if facts.server is not None and not facts.server.get("ok"):
        reason = (
            f"{host.name}: the reference server {facts.server['url']} does not answer: {facts.server.get('detail')}"
        )
        missing.append(Refusal(reason=reason, hint=f"start it, or change `server:` in {scene.job.path.name}"))
    if facts.python is not None and not facts.python.get("ok"):
        reason = f"{host.name}: {facts.python['path']} does not run: {facts.python.get('detail')}"
        missing.append(Refusal(reason=reason, hint=f"name another `python:` of host {host.name} in hosts.yaml"))
    return tuple(missing)


# -- act -----------------------------------------------------------------------------------------------------------


def _sample(scene: Scene, facts: HostFacts) -> dict[str, Any]:
    return training.sample_of(facts.runs[scene.run.name])


def _look_again(scene: Scene, connections: Connections) -> dict[str, Any] | None:
    look = Look(host=scene.train, runs=(scene.run,), sample=True)
    outcome = look_at([look], connections, scene.inventory.timeouts)[0]
    return _sample(scene, outcome.value) if outcome.value is not None else None


def _ship(
    scene: Scene, plan: Plan, before: dict[str, Any], connections: Connections, listener: Listener
) -> dict[str, Any]:
    source, target = _ends(scene, connections)
    staging.ship(
        scene.checkpoint,
        scene.job,
        source,
        target,
        scene.inventory.timeouts,
        listener.moved,
        listener.warned,
        choice=plan.routes,
        layout=scene.run.layout,
        limit_rate=scene.run.limit_rate,
    )
    return training.window("ship", scene.train.name, before, _look_again(scene, connections))


def _launch(scene: Scene, windows: list[dict[str, Any]], connections: Connections) -> Run:
    env, secrets = config.resolve_env(scene.job)
    run_id = runs.launch(
        connections.to(scene.evaluate),
        scene.evaluate,
        scene.job,
        key=planning.run_key(scene.digests),
        training_run=scene.run.name,
        step=scene.checkpoint.step,
        digests=scene.digests,
        harness=scene.ours,
        env=env,
        secrets=secrets,
        windows=windows,
        timeouts=scene.inventory.timeouts,
    )
    return Run(
        id=run_id,
        job=scene.job.name,
        host=scene.evaluate.name,
        run=scene.run.name,
        step=scene.checkpoint.step,
        state="running",
        checkpoint=scene.checkpoint.identity,
    )


def _follow(scene: Scene, run: Run, connections: Connections, listener: Listener) -> Run:
    """To the end of the run, taking the connection up again when it is lost."""
    offset = 0

    def looked(look: Json) -> None:
        nonlocal offset
        offset = look["offset"]
        listener.looked(look)

    for attempt in range(RECONNECTS):
        try:
            connection = connections.to(scene.evaluate)
            return runs.follow(connection, scene.evaluate, run.id, offset, scene.inventory.timeouts, looked)
        except ConnectionLost as error:
            listener.warned(f"{error.message}; run {run.id} goes on, connecting again")
            connections.forget(scene.evaluate)
            time.sleep(min(2.0**attempt, 30.0) * min(1.0, scene.inventory.timeouts.dead / 15))
    raise ConnectionLost(
        f"{scene.evaluate.name}: lost contact; run {run.id} may still go on there",
        hint="the same command again joins it",
        host=scene.evaluate.name,
    )


def _collect(scene: Scene, plan: Plan, run: Run, connections: Connections, listener: Listener) -> EvalReport:
    """Bring the small files home, look at training once more, and write the result down."""
    files = runs.collect(connections.to(scene.evaluate), scene.evaluate, run.id, scene.inventory.timeouts)
    spec = json.loads(files["spec.json"])
    after = _look_again(scene, connections)
    windows = [*spec.get("windows", ()), training.window("collect", scene.train.name, after, after)]
    receipt = training.receipt(windows)
    with Ledger.at_home() as ledger:
        folder = ledger.keep_files(scene.evaluate.name, run.id, files)
        history = tuple(one for one in ledger.results(scene.run.name) if one.id != run.id)
        if run.state != "succeeded":
            return EvalReport(plan=plan, run=run, history=history)
        document = read_result(files.get(scene.job.result.file), scene.job)
        result = _result(scene, run, document, receipt, folder)
        ledger.add(result)
    return EvalReport(plan=plan, run=run, result=result, history=history)


def read_result(content: bytes | None, job: Job) -> Mapping[str, Any]:
    """The result file's JSON object. Raises OrchError (8) where the evaluation wrote none, or not JSON."""
    if content is None:
        raise EvaluationFailed(f"the evaluation ended well but wrote no {job.result.file}")
    try:
        document = json.loads(content)
    except ValueError as error:
        raise EvaluationFailed(f"{job.result.file} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise EvaluationFailed(f"{job.result.file} holds no JSON object")
    return document


def _result(scene: Scene, run: Run, document: Mapping[str, Any], receipt: Receipt, folder: Path) -> Result:
    rule = scene.job.result
    baseline = document.get("baseline")
    ours, theirs = comparison.items(document, rule), comparison.items(baseline, rule)
    return Result(
        id=run.id,
        run=scene.run.name,
        job=scene.job.name,
        host=scene.evaluate.name,
        step=scene.checkpoint.step,
        headline_name=rule.headline or "",
        headline=comparison.headline(document, rule),
        baseline=comparison.headline(baseline, rule) if isinstance(baseline, dict) else None,
        verdict=comparison.verdict(ours, theirs, rule.better),
        digests=scene.digests,
        receipt=receipt,
        source=scene.train_facts.runs[scene.run.name].source,
        ended_at=run.ended_at or datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"),
        folder=folder,
    )


def _already(scene: Scene, plan: Plan, why: str, connections: Connections, listener: Listener) -> EvalReport:
    """A finished run of the same: the ledger knows it, or its files are still to be brought home."""
    key = planning.run_key(scene.digests)
    run = next(row for row in reversed(scene.facts.runs) if row.key == key)
    with Ledger.at_home() as ledger:
        known = ledger.results(scene.run.name)
    mine = next((one for one in known if one.id == run.id and one.host == run.host), None)
    if mine is None:
        return _collect(scene, plan, run, connections, listener)
    return EvalReport(plan=plan, run=run, result=mine, history=tuple(one for one in known if one is not mine))


def failure(report: EvalReport) -> OrchError | None:
    """The error that a report amounts to, if any: the evaluation failed, or training changed meanwhile."""
    run = report.run
    if run is not None and run.state in ("failed", "lost", "cancelled", "refused"):
        ended = run.reason or (f"exit {run.exit_code}" if run.exit_code is not None else f"signal {run.signal}")
        return EvaluationFailed(
            f"run {run.id} {run.state}: {ended}", hint=f"its log is in {run.folder} on {run.host}", host=run.host
        )
    if report.result is not None and report.result.receipt.verdict == "changed":
        return TrainingDisturbed("; ".join(report.result.receipt.reasons), hint="orch status shows how training stands")
    return None
