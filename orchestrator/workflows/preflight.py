"""The story of `orch preflight`: look at the training box, then try on the evaluation host; one exec each."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator import config, plan, taken
from orchestrator.actions import harness, preflight
from orchestrator.actions.observation import RunFacts
from orchestrator.amounts import size
from orchestrator.answers import read_harness
from orchestrator.errors import ConfigError, OrchError, Refused
from orchestrator.model import Check, Drift, Host, Inventory, Job, Scan, TrainingRun
from orchestrator.ssh.choose import Connections
from orchestrator.workflows.look import Look, look_at
from orchestrator.workflows.scene import Scene


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightReport:
    """Every check of one job on its hosts."""

    job: Job
    host: Host
    run: str | None
    checks: tuple[Check, ...]
    unreachable: OrchError | None
    """why the training box could not be asked"""

    @property
    def failed(self) -> tuple[Check, ...]:
        """Those that an evaluation would fail at."""
        return tuple(check for check in self.checks if check.state == "fail")


def preflight_job(
    inventory: Inventory, job_name: str | None, run_name: str | None, host_name: str | None, connections: Connections
) -> PreflightReport:
    """Try everything that an evaluation of the latest checkpoint needs; nothing is synced, shipped or started."""
    job = _job(inventory, job_name)
    run = _run(inventory, job, run_name)
    host = config.choose_eval_host(inventory, run, host_name)
    ours = harness.local(job)
    wanted = preflight.read_needs(job, ours)
    facts, unreachable = _look(inventory, run, job, connections) if run is not None else (None, None)
    scan = facts.scan if facts is not None else None
    if (whole := sum(file.size for file in ours.files)) > preflight.LIMIT:
        raise Refused(f"{job.harness_local}: {size(whole)} of harness, too much to try out")
    tensors = preflight.tensors_of(scan) if job.ship == "model" else None
    connection, limits = connections.to(host), inventory.timeouts
    answer = preflight.try_out(connection, host, job, ours, wanted, tensors, limits, synced=False)
    drift = harness.drift(ours, read_harness(host.name, answer["harness"]), taken.read(job, host))
    checks = [_checkpoint(run, facts, unreachable)] if run is not None else []
    checks += [preflight.tensors_check(job, scan, answer), _harness(job, host, drift)]
    checks += preflight.judge(host, job, wanted, answer)
    checks.append(preflight.disk_check(host, answer["disk"], _needed(host, scan)))
    name = run.name if run is not None else None
    return PreflightReport(job=job, host=host, run=name, checks=tuple(checks), unreachable=unreachable)


def refuse_what_does_not_fit(scene: Scene, connections: Connections) -> None:
    """The cheap part, on a host whose harness is synced, before a checkpoint is shipped: are the packages there, and
    do the tensors fit? Better now than after gigabytes. Raises Refused."""
    host, job, scan, limits = scene.evaluate, scene.job, scene.scan, scene.inventory.timeouts
    wanted = preflight.read_needs(job, scene.ours)
    tensors = preflight.tensors_of(scan) if job.ship == "model" else None
    connection = connections.to(host)
    answer = preflight.try_out(connection, host, job, scene.ours, wanted, tensors, limits, synced=True)
    checks = [preflight.tensors_check(job, scan, answer), *preflight.judge(host, job, wanted, answer)]
    failed = [check for check in checks if check.state == "fail"]
    if failed:
        reasons = "; ".join(f"{check.name}: {check.detail}" for check in failed)
        raise Refused(f"{host.name}: {reasons}; nothing was shipped", hint=failed[0].hint, host=host.name)


def _job(inventory: Inventory, name: str | None) -> Job:
    """The job that is named, or the only one. Raises ConfigError, also for the name of a run in its place."""
    jobs = config.job_names(inventory)
    if name is not None and name in inventory.runs and name not in jobs:
        job = inventory.runs[name].job or (jobs[0] if len(jobs) == 1 else "JOB")
        raise ConfigError(f"{name} is a run, and the job comes first", hint=f"orch preflight {job} {name}")
    return config.load_job(inventory, name or config.only_job(inventory))


def _run(inventory: Inventory, job: Job, name: str | None) -> TrainingRun | None:
    """The training run that is meant: named, or the only one that this job evaluates."""
    if name is not None:
        return config.choose_run(inventory, name)
    mine = [run for run in inventory.runs.values() if run.job in (None, job.name)]
    return mine[0] if len(mine) == 1 else None


def _look(
    inventory: Inventory, run: TrainingRun, job: Job, connections: Connections
) -> tuple[RunFacts | None, OrchError | None]:
    train = inventory.hosts[run.hosts[0]]
    look = Look(host=train, runs=(run,), job=job, tensors=job.ship == "model")
    (outcome,) = look_at([look], connections, inventory.timeouts)
    return (outcome.value.runs[run.name] if outcome.value is not None else None), outcome.error


def _checkpoint(run: TrainingRun, facts: RunFacts | None, unreachable: OrchError | None) -> Check:
    if unreachable is not None:
        return Check(name="checkpoint", state="fail", detail=unreachable.message, hint=unreachable.hint)
    scan = facts.scan if facts is not None else None
    if scan is None or scan.latest is None:
        why = "; ".join(facts.errors) if facts is not None else ""
        detail = why or f"none complete under {run.checkpoints}"
        return Check(name="checkpoint", state="fail", detail=detail, hint=f"orch checkpoints {run.name}")
    detail = f"step {scan.latest.step}, {size(scan.latest.ship_bytes)} to ship"
    return Check(name="checkpoint", state="ok", detail=detail)


def _harness(job: Job, host: Host, drift: Drift) -> Check:
    if drift.overwrites_unknown or drift.unresolved:
        unresolved = bool(drift.unresolved)
        refusal = plan.unresolved_refusal(drift, job) if unresolved else plan.drift_refusal(drift, host, job)
        return Check(name="harness", state="fail", detail=refusal.reason, hint=refusal.hint)
    return Check(name="harness", state="ok", detail=drift.state)


def _needed(host: Host, scan: Scan | None) -> int:
    ship = scan.latest.ship_bytes if scan is not None and scan.latest is not None else 0
    return ship + plan.kept_free(host)
