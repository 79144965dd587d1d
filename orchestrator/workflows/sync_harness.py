"""The story of `orch sync-harness`: compare whole files, show the difference, make the host's harness equal to ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator import config
from orchestrator.actions import harness
from orchestrator.actions.harness import FileDiff, Pushed
from orchestrator.errors import OrchError, Refused
from orchestrator.model import Drift, Host, Inventory, Job
from orchestrator.ssh.choose import Connections
from orchestrator.ssh.connection import Connection
from orchestrator.workflows.look import Look, look_at


class Consent(Protocol):
    """Asked before anything that orch did not put there is replaced."""

    @property
    def possible(self) -> bool:
        """Whether it could be given at all: `--yes`, or somebody at a terminal."""

    def __call__(self, drift: Drift, diffs: Sequence[FileDiff]) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """How the harness stood, and what was done about it."""

    host: Host
    job: Job
    drift: Drift
    diffs: tuple[FileDiff, ...]
    pushed: Pushed | None


def compare(inventory: Inventory, job_name: str | None, host_name: str | None, connections: Connections) -> SyncReport:
    """The difference between the local harness and the host's; nothing is changed."""
    job = config.load_job(inventory, job_name or config.only_job(inventory))
    run = next((run for run in inventory.runs.values() if run.job in (None, job.name)), None)
    host = config.choose_eval_host(inventory, run, host_name)
    ours = harness.local(job)
    outcome = look_at([Look(host=host, job=job, local=ours)], connections, inventory.timeouts)[0]
    if outcome.value is None or outcome.value.evaluation is None:
        raise outcome.error or OrchError(f"{host.name}: no answer about the harness", host=host.name)
    facts = outcome.value.evaluation
    drift = harness.drift(ours, facts.harness, facts.base, facts.extras)
    diffs = differences(connections.to(host), host, job, drift, inventory)
    return SyncReport(host=host, job=job, drift=drift, diffs=diffs, pushed=None)


def differences(
    connection: Connection, host: Host, job: Job, drift: Drift, inventory: Inventory
) -> tuple[FileDiff, ...]:
    """Each differing file with its unified diff; one exec fetches the host's versions."""
    paths = [change.path for change in drift.files if change.change in ("modified", "deleted", "added")]
    theirs = harness.contents(connection, host, job, paths, inventory.timeouts) if paths and drift.remote else {}
    return tuple(harness.diffs(drift, job.harness_local, theirs))


def sync(report: SyncReport, inventory: Inventory, connections: Connections, consent: Consent) -> SyncReport:
    """Push what differs. Raises Refused when the host holds edits of its own and nobody consents."""
    drift = report.drift
    if drift.state == "in_sync":
        return report
    if drift.overwrites_unknown and not consent(drift, report.diffs):
        raise Refused(
            f"{report.host.name}: {report.job.harness_remote} holds what orch did not put there; nothing was changed",
            hint=f"orch sync-harness {report.job.name} --yes takes the local files, saving theirs beside first",
            host=report.host.name,
        )
    pushed = harness.push(connections.to(report.host), report.host, report.job, drift, inventory.timeouts)
    return SyncReport(host=report.host, job=report.job, drift=drift, diffs=report.diffs, pushed=pushed)
