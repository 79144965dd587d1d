"""The first step of `orch eval-latest`: look at both boxes at the same time, and put together what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator import config, taken
from orchestrator import plan as planning
from orchestrator.actions import harness, training
from orchestrator.actions.ledger import origin_of
from orchestrator.actions.observation import EvalFacts, RunFacts, run_question, unseen
from orchestrator.answers import Json
from orchestrator.errors import ConfigError, HostUnreachable, NothingToEvaluate
from orchestrator.model import (
    Checkpoint,
    Digests,
    Drift,
    Harness,
    Host,
    Inventory,
    Job,
    Refusal,
    Run,
    Scan,
    TrainingRun,
)
from orchestrator.ssh.choose import Connections
from orchestrator.workflows.look import Look, look_at

ALIVE = {"running", "stopped", "ambiguous", "hidden"}


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
    again: bool = False
    """a new run although one has succeeded"""
    checkpoint: str = ""
    """identity of the very checkpoint that is meant; also one that only the evaluation host still has"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The boxes, the job and everything seen of them: what the later steps work on."""

    inventory: Inventory
    options: Options
    run: TrainingRun
    job: Job
    train: Host
    evaluate: Host
    ours: Harness
    training: RunFacts
    facts: EvalFacts
    box: Json
    """the evaluation host's own facts: disk, memory ..."""
    train_addresses: tuple[str, ...]
    """of the training box, as itself sees them"""
    beside: Json | None
    """the trainings that live on the evaluation host, as a supervisor needs to know them; None where there is none"""
    neighbours: Mapping[str, RunFacts]
    """the inventory's runs on the evaluation host, as they were seen there"""
    drift: Drift
    job_digest: str
    data_digest: str
    warnings: tuple[str, ...]

    @property
    def scan(self) -> Scan | None:
        """What lies on the training box; None where it could not be looked into."""
        return self.training.scan

    @property
    def origin(self) -> str:
        """Where the run's checkpoints come from."""
        return origin_of(self.train, self.run)

    def digests(self, checkpoint: str) -> Digests:
        """What would make a result of this checkpoint."""
        return Digests(checkpoint=checkpoint, harness=self.ours.digest, job=self.job_digest, data=self.data_digest)

    @property
    def trains(self) -> Json:
        """What the evaluation host looks for again before a start: trainings that may have begun since the plan."""
        rules = [run_question(self.inventory.runs[name], self.evaluate) for name in self.neighbours]
        runs = [{key: rule[key] for key in ("name", "process", "log", "progress")} for rule in rules]
        return {"allowed": self.options.allow_on_training_host, "runs": runs}

    def window(self) -> dict[str, Any]:
        """The stretch in which this was seen, for the receipt."""
        return training.observed("observe", self.train.name, self.training)

    def named_there(self, run: str) -> str:
        """Under which name a receipt keeps a training on the evaluation host: another run's is not this one's."""
        mine = run == self.run.name and self.evaluate.name == self.train.name
        return self.evaluate.name if mine else f"{self.evaluate.name} ({run})"

    def runs_of_this(self) -> tuple[Run, ...]:
        """Runs on the evaluation host of this training run with the same harness, job and data, newest first."""
        same = self.digests("")
        return tuple(
            row
            for row in reversed(self.facts.runs)
            if row.run == self.run.name
            and (row.digests.harness, row.digests.job, row.digests.data) == (same.harness, same.job, same.data)
            and self.options.step in (None, row.step)
        )


def observe(
    inventory: Inventory, options: Options, connections: Connections, *, without_training: bool = False
) -> Scene:
    """Look at both boxes at once. Raises what a box that can't be reached raises.

    `without_training`: a training box that can't be reached is one that was not seen.
    """
    run = config.choose_run(inventory, options.run)
    job = config.choose_job(inventory, run, options.job)
    evaluate = config.choose_eval_host(inventory, run, options.host)
    train = inventory.hosts[run.hosts[0]]
    notes: list[str] = []
    ours = harness.local(job, notes)
    there = tuple(other for other in inventory.runs.values() if evaluate.name in other.hosts)
    others = tuple(other for other in there if evaluate.name != train.name or other.name != run.name)
    looks = [
        Look(host=train, runs=(run,), job=job, step=options.step, sample=True, tensors=job.ship == "model"),
        Look(host=evaluate, job=job, local=ours, digest=True),
        *([Look(host=evaluate, runs=others, sample=True)] if others else ()),
    ]
    answers = []
    for outcome in look_at(looks, connections, inventory.timeouts):
        if without_training and outcome.host is looks[0] and isinstance(outcome.error, HostUnreachable):
            answers.append(unseen(run, outcome.error))
            continue
        if outcome.error is not None:
            raise outcome.error
        assert outcome.value is not None
        answers.append(outcome.value)
    seen, facts = answers[0].runs[run.name], answers[1].evaluation
    assert facts is not None
    return Scene(
        inventory=inventory,
        options=options,
        run=run,
        job=job,
        train=train,
        evaluate=evaluate,
        ours=ours,
        training=seen,
        facts=facts,
        box=answers[1].host,
        train_addresses=tuple(answers[0].host.get("addresses") or ()),
        beside=_beside({**answers[0].runs, **answers[-1].runs}, there),
        neighbours={other.name: {**answers[0].runs, **answers[-1].runs}[other.name] for other in there},
        drift=harness.drift(ours, facts.harness, taken.read(job, evaluate)),
        job_digest=planning.job_digest(job),
        data_digest=planning.data_digest(facts.data),
        warnings=(*notes, *seen.errors, *(seen.scan.warnings if seen.scan else ()), *facts.errors),
    )


def _beside(seen_there: Mapping[str, RunFacts], there: tuple[TrainingRun, ...]) -> Json | None:
    """Those of the inventory's runs on the evaluation host that live, or may, where that can't be seen."""
    found: list[Json] = []
    unseen = []
    for run in there:
        seen = seen_there[run.name]
        process = seen.process
        if process is not None and process["state"] in ALIVE and (neighbour := seen.neighbour) is not None:
            found.append({"name": run.name, "log": run.log, "progress": run.progress, **neighbour})
        elif process is None or process["state"] in ALIVE:
            unseen.append(run.name)
    return {"trainings": found, "unseen": unseen} if found or unseen else None


def wanted_checkpoint(scene: Scene) -> Checkpoint:
    """The one that the scan found, or the one that is named and staged.

    Raises NothingToEvaluate with a line for every candidate; ConfigError where there is no such folder.
    """
    scan, step = scene.scan, scene.options.step
    staged = scene.facts.staged.get(scene.options.checkpoint)
    if staged is not None and staged["step"] is not None:
        return Checkpoint(
            host=scene.train.name,
            root=scene.run.checkpoints,
            path=(staged["source"] or staged["path"]).removeprefix(f"{scene.train.name}:{scene.run.checkpoints}/"),
            step=staged["step"],
            bytes=staged["bytes"],
            ship_bytes=staged["bytes"],
            identity=scene.options.checkpoint,
        )
    if scan is None:
        why = scene.training.unscanned
        if isinstance(why, ConfigError):
            raise why
        said = f": {why.message}" if why is not None else ""
        raise NothingToEvaluate(
            f"{scene.train.name}: {scene.run.checkpoints} was not looked into{said}",
            hint=f"orch checkpoints {scene.run.name} looks again",
            host=scene.train.name,
        )
    if scan.latest is not None:
        return scan.latest
    wanted = "checkpoint" if step is None else f"checkpoint of step {step}"
    rows = "".join(f"\n  {row.path}: {row.state}: {row.reason}" for row in scan.candidates)
    raise NothingToEvaluate(
        f"{scan.host}: no complete {wanted} under {scan.root}{rows}",
        hint="orch checkpoints lists every candidate with its reason",
        host=scan.host,
    )


def server_place(scene: Scene) -> str:
    """In words: that the reference server of the job is on a host where a training runs; "" where it is elsewhere."""
    server = scene.facts.server
    if server is None:
        return ""
    place = ""
    if server.get("here"):  # first: two hosts may both have the address of a container network
        place = scene.evaluate.name if scene.beside else ""
    elif set(server.get("addresses") or ()).intersection(scene.train_addresses):
        place = scene.train.name
    what = f"its reference server {server['url']} is on {place}, where a training runs, and works on that box's GPUs"
    return what if place else ""


def missing(scene: Scene) -> tuple[Refusal, ...]:
    """What the job needs and the evaluation host has not: data, reference server, interpreter."""
    host, facts, file = scene.evaluate, scene.facts, scene.job.path.name
    found = []
    for name, row in facts.data.items():
        if not row.get("exists"):
            hint = f"make it there, or change data.{name} in {file}"
            found.append(Refusal(reason=f"{host.name}: data.{name}: no {row.get('path')}", hint=hint))
        elif row.get("error"):
            found.append(Refusal(reason=f"{host.name}: data.{name}: {row['error']}", hint="orch status shows the host"))
    server, python = facts.server, facts.python
    if server is not None and not server.get("ok"):
        reason = f"{host.name}: the reference server {server['url']} does not answer: {server.get('detail')}"
        found.append(Refusal(reason=reason, hint=f"start it, or change `server:` in {file}"))
    if python is not None and not python.get("ok"):
        reason = f"{host.name}: {python['path']} does not run: {python.get('detail')}"
        found.append(Refusal(reason=reason, hint=f"name another `python:` of host {host.name} in hosts.yaml"))
    return tuple(found)
