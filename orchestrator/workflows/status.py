"""The story of `orch status`: ask all boxes at once, then say how the runs stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator import config, taken
from orchestrator.actions import checkpoints, harness, launched, ledger
from orchestrator.actions.ledger import Ledger
from orchestrator.actions.observation import EvalFacts, HostFacts, RunFacts
from orchestrator.answers import Json
from orchestrator.errors import OrchError
from orchestrator.keeping import state_folder
from orchestrator.model import Candidate, Checkpoint, Entry, Harness, Host, Inventory, Job, Run, TrainingRun
from orchestrator.ssh.choose import Connections
from orchestrator.workflows.look import Look, look_at


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """A box in the table: its facts, or why there are none."""

    host: Host
    transport: str
    facts: Json | None
    error: OrchError | None
    gpu_roles: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A training run on one of its hosts, and how its evaluation stands."""

    run: TrainingRun
    host: str
    process: Json | None
    progress: Json | None
    source: Json | None
    latest: Checkpoint | None
    latest_age: float | None
    steps_behind: int | None
    next_checkpoint_in: float | None
    skipped: tuple[Candidate, ...]
    harness: str
    harness_why: str
    """why it is unknown; "" where it is known"""
    evaluations: tuple[Run, ...]
    results: Mapping[str, Entry]
    """run id -> what the ledger knows of it"""
    unread: frozenset[str]
    """ids of runs that succeeded and whose result could not be read here"""
    unevaluated: tuple[int, ...]
    unproven: int
    """older checkpoints without a result that were not looked into, for want of time"""
    remote_folder: tuple[Json, ...]
    seen: bool
    """whether the training box answered"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    """Everything `orch status` says."""

    hosts: tuple[HostRow, ...]
    runs: tuple[RunRow, ...]
    warnings: tuple[str, ...]

    @property
    def unreachable(self) -> tuple[OrchError, ...]:
        """Errors of the hosts that did not answer."""
        return tuple(row.error for row in self.hosts if row.error is not None)


def status(inventory: Inventory, run_name: str | None, connections: Connections) -> StatusReport:
    """Look at the hosts of one run, or of all. Raises ConfigError; dead hosts are rows."""
    warnings: list[str] = []
    runs = [config.choose_run(inventory, run_name)] if run_name else list(inventory.runs.values())
    jobs = _jobs(inventory, runs, warnings)
    looks = _looks(inventory, runs, jobs, everything=run_name is None)
    outcomes = look_at(looks, connections, inventory.timeouts)
    training: dict[tuple[str, str], RunFacts] = {}
    evaluation: dict[tuple[str, str], EvalFacts] = {}
    for outcome in outcomes:
        look, facts = outcome.host, outcome.value
        if facts is None:
            continue
        training.update({(run.name, look.host.name): facts.runs[run.name] for run in look.runs})
        warnings += [error for run in look.runs for error in facts.runs[run.name].errors]
        if look.job is not None and facts.evaluation is not None:
            evaluation[look.job.name, look.host.name] = facts.evaluation
            warnings += facts.evaluation.errors
    known = _known(inventory, runs, warnings)
    rows = tuple(
        _run_row(run, host, training.get((run.name, host)), jobs.get(run.name), evaluation, known[run.name], warnings)
        for run in runs
        for host in run.hosts
    )
    answers = [(outcome.host.host, outcome.value, outcome.error) for outcome in outcomes]
    return StatusReport(hosts=_host_rows(answers, runs), runs=rows, warnings=tuple(warnings))


def _known(inventory: Inventory, runs: Sequence[TrainingRun], warnings: list[str]) -> dict[str, Mapping[str, Entry]]:
    """The ledger's results of each run, by run id: hosts forget what was cleaned away, the ledger does not."""
    found: dict[str, Mapping[str, Entry]] = {run.name: {} for run in runs}
    if not ledger.exists():
        return found
    try:
        with Ledger.at_home() as known:
            for run in runs:
                origin = ledger.origin_of(inventory.hosts[run.hosts[0]], run)
                found[run.name] = {entry.id: entry for entry in known.entries(run.name, origin)}
    except OrchError as error:
        warnings.append(error.message)
    return found


# A run's job with the host that evaluates it and the local harness.
RunJob = tuple[Job, Host, Harness]


def _jobs(inventory: Inventory, runs: Sequence[TrainingRun], warnings: list[str]) -> dict[str, RunJob]:
    """The job of each run that has one; a broken job costs its own part of the table, not the rest."""
    found: dict[str, RunJob] = {}
    for run in runs:
        if run.job is None and not config.job_names(inventory):
            continue
        try:
            job = config.choose_job(inventory, run, None)
            found[run.name] = (job, config.choose_eval_host(inventory, run, None), harness.local(job))
        except OrchError as error:
            warnings.append(f"run {run.name}: {error.message}")
    return found


def _looks(
    inventory: Inventory, runs: Sequence[TrainingRun], jobs: Mapping[str, RunJob], *, everything: bool
) -> list[Look]:
    looks = []
    for host in inventory.hosts.values():
        here = tuple(run for run in runs if host.name in run.hosts)
        if here:
            looks.append(Look(host=host, runs=here))
        wanted = {job.name: (job, local) for job, where, local in jobs.values() if where.name == host.name}
        looks += [Look(host=host, job=job, local=local) for job, local in wanted.values()]
        if everything and not here and not wanted:
            looks.append(Look(host=host))
    return looks


def _run_row(
    run: TrainingRun,
    host: str,
    facts: RunFacts | None,
    run_job: RunJob | None,
    evaluation: Mapping[tuple[str, str], EvalFacts],
    results: Mapping[str, Entry],
    warnings: list[str],
) -> RunRow:
    scan = facts.scan if facts else None
    if scan:
        warnings += [f"run {run.name}: {warning}" for warning in scan.warnings]
    seen = evaluation.get((run_job[0].name, run_job[1].name)) if run_job else None
    mine = tuple(row for row in seen.runs if row.run == run.name) if seen else ()
    unread = frozenset(
        row.id for row in mine if row.state == "succeeded" and launched.came_without_result(state_folder(), row)
    )
    done = {row.step for row in mine if row.state == "succeeded" and row.id not in unread}
    done |= {entry.step for entry in results.values() if run_job is None or entry.job == run_job[0].name}
    complete = sorted({c.step for c in scan.candidates if c.state == "complete" and c.step is not None}) if scan else []
    unproven = [row for row in checkpoints.not_looked_into(scan) if row.step not in done] if scan else []
    if unproven:
        warnings.append(
            f"run {run.name}: {len(unproven)} older checkpoints without a result were not looked into, for want of "
            f"time; orch eval-latest {run.name} --step N looks into one"
        )
    drift = _drift(run_job, seen) if run_job and seen else "unknown"
    latest = scan.latest if scan else None
    progress = facts.progress if facts else None
    step = progress.get("step") if progress else None
    return RunRow(
        run=run,
        host=host,
        process=facts.process if facts else None,
        progress=progress,
        source=facts.source if facts else None,
        latest=latest,
        latest_age=scan.latest_age if scan else None,
        steps_behind=max(0, step - latest.step) if latest and step is not None else None,
        next_checkpoint_in=_next_checkpoint(checkpoints.spacing(scan) if scan else None, latest, progress),
        skipped=checkpoints.passed_over(scan) if scan else (),
        harness=drift,
        harness_why=_why_unknown(run, run_job, seen) if drift == "unknown" else "",
        evaluations=mine,
        results=results,
        unread=unread,
        unevaluated=tuple(step for step in complete if step not in done),
        unproven=len(unproven),
        remote_folder=seen.remote_folder if seen else (),
        seen=facts is not None,
    )


def _why_unknown(run: TrainingRun, run_job: RunJob | None, seen: EvalFacts | None) -> str:
    if run_job is None:
        return f"not looked at: no job of run {run.name} could be read"
    if seen is None:
        return f"not looked at: {run_job[1].name} did not answer"
    return f"it differs, and orch never synced it: orch sync-harness {run_job[0].name} --check shows the difference"


def _drift(run_job: RunJob, seen: EvalFacts) -> str:
    job, host, ours = run_job
    return harness.drift(ours, seen.harness, taken.read(job, host)).state


def _next_checkpoint(spacing: int | None, latest: Checkpoint | None, progress: Json | None) -> float | None:
    """Seconds until the next save, from the steps' spacing and the pace; None where either is unknown."""
    if spacing is None or latest is None or progress is None:
        return None
    step, pace = progress.get("step"), progress.get("steps_per_s")
    if step is None or not pace:
        return None
    missing = spacing - (step - latest.step) % spacing
    return float(missing / pace)


def _host_rows(
    answers: Sequence[tuple[Host, HostFacts | None, OrchError | None]], runs: Sequence[TrainingRun]
) -> tuple[HostRow, ...]:
    """One row a host, though a host may have been asked twice (as training box and as evaluation box)."""
    rows: dict[str, HostRow] = {}
    for host, facts, error in answers:
        earlier = rows.get(host.name)
        if earlier is not None and earlier.error is None:
            continue
        roles = {
            index: role for run in runs if host.name in run.hosts for role, ids in run.gpus.items() for index in ids
        }
        rows[host.name] = HostRow(
            host=host,
            transport=facts.transport if facts else host.transport,
            facts=facts.host if facts else None,
            error=error,
            gpu_roles=roles,
        )
    return tuple(rows.values())
