"""The story of `orch sync-harness`: compare whole files, show the difference, and end it: by a push where only the
local side moved; where the host's side was edited, as the user says (keep theirs, take ours, or merge)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from orchestrator import config, taken
from orchestrator.actions import harness, localtree, taking
from orchestrator.actions.harness import Pushed
from orchestrator.actions.harness_diff import FileDiff, diffs
from orchestrator.actions.localtree import Pulled
from orchestrator.errors import Refused
from orchestrator.model import Drift, Host, Inventory, Job, LocalChange
from orchestrator.ssh.choose import Connections
from orchestrator.ssh.connection import Connection


class Consent(Protocol):
    """Asked before anything that orch did not put there is replaced."""

    @property
    def possible(self) -> bool:
        """Whether it could be given at all: `--yes`, or somebody at a terminal."""

    def __call__(self, drift: Drift, diffs: Sequence[FileDiff]) -> bool: ...


class NoConsent:
    """Nobody is asked."""

    possible = False

    def __call__(self, drift: Drift, diffs: Sequence[FileDiff]) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """How the harness stood, and what was done about it."""

    host: Host
    job: Job
    drift: Drift
    diffs: tuple[FileDiff, ...]
    notes: tuple[str, ...]
    """what was left out of the comparison on either side, and why"""
    session: harness.Session
    pushed: Pushed | None = None
    pulled: Pulled | None = None


@contextmanager
def compared(
    inventory: Inventory,
    job_name: str | None,
    host_name: str | None,
    connections: Connections,
    also: Sequence[str] = (),
) -> Iterator[SyncReport]:
    """The difference between the local harness and the host's; nothing is changed. For the time of the block the host
    is ready for a push.

    `also` names files that only the host has and that are to be taken for a part of the harness.
    """
    job = config.load_job(inventory, job_name or config.only_job(inventory))
    run = next((run for run in inventory.runs.values() if run.job in (None, job.name)), None)
    host = config.choose_eval_host(inventory, run, host_name)
    notes: list[str] = []
    ours = harness.local(job, notes)
    with harness.Session(connections.to(host), host, job, ours, also, inventory.timeouts) as session:
        drift = harness.drift(ours, session.facts, taken.read(job, host))
        found = tuple(diffs(drift, job.harness_local, session.theirs))
        notes += session.facts.notes
        yield SyncReport(host=host, job=job, drift=drift, diffs=found, notes=tuple(notes), session=session)


def differences(
    connection: Connection, host: Host, job: Job, drift: Drift, inventory: Inventory
) -> tuple[FileDiff, ...]:
    """Each differing file with its unified diff; one exec fetches the host's versions."""
    paths = [change.path for change in drift.files if change.change in ("modified", "deleted", "added")]
    theirs = harness.contents(connection, host, job, paths, inventory.timeouts) if paths and drift.remote else {}
    return tuple(diffs(drift, job.harness_local, theirs))


def sync(report: SyncReport, consent: Consent) -> SyncReport:
    """Push what differs. Raises Refused when the host holds edits of its own and nobody consents, and while conflicts
    of a merge stand in local files."""
    drift, job = report.drift, report.job
    if drift.state == "in_sync":
        _settle(report)
        return report
    _refuse_unresolved(report)
    if drift.overwrites_unknown and not consent(drift, report.diffs):
        raise Refused(
            f"{report.host.name}: {job.harness_remote} holds what orch did not put there; nothing was changed",
            hint=choices(job),
            host=report.host.name,
        )
    return replace(report, pushed=_push(report, drift))


def choices(job: Job) -> str:
    """What to type where the host's side was edited."""
    return (
        f"orch sync-harness {job.name} --keep-remote brings their edits here, --merge puts both together, "
        "--take-local (or --yes) takes the local files, saving theirs beside first"
    )


def keep_remote(report: SyncReport, inventory: Inventory, connections: Connections, consent: bool) -> SyncReport:
    """Bring the host's edits into the local tree, for review; the host is left as it is.

    Raises Refused where git holds no commit of a local file that would be replaced, unless `consent`.
    """
    _refuse_unresolved(report)
    wanted = taking.wanted_versions(report.drift)
    theirs = harness.fetch(connections.to(report.host), report.host, report.job, wanted, inventory.timeouts)
    changes = taking.local_changes(report.drift, theirs, {})
    here = {file.path for file in report.drift.local.files}
    dirty = localtree.uncommitted(report.job.harness_local, [one.path for one in changes if one.path in here])
    if dirty and not consent:
        raise Refused(
            f"{report.job.harness_local}: not committed in git: {', '.join(dirty)}; nothing was changed",
            hint="commit or stash that, or add --yes: what is replaced is saved in .orch/saved there",
        )
    return _changed(report, changes, inventory)


def merge(report: SyncReport, inventory: Inventory, connections: Connections) -> SyncReport:
    """Put both sides' edits together in the local tree, and push that unless conflicts stand in it.

    Raises Refused, naming all that can't be merged. Where conflicts stand, nothing is pushed: see `Pulled.conflicts`.
    """
    _refuse_unresolved(report)
    drift, job, host = report.drift, report.job, report.host
    if not taking.edited_there(drift):
        return sync(report, NoConsent())
    if drift.state == "unknown":
        raise Refused(
            f"{host.name}: orch never synced {job.harness_remote}, so there is no common version to merge from",
            hint=choices(job),
            host=host.name,
        )
    connection, limits = connections.to(host), inventory.timeouts
    theirs = harness.fetch(connection, host, job, taking.wanted_versions(drift), limits)
    base = harness.last_synced(connection, host, job, taking.base_versions(drift), limits)
    ours = localtree.texts(job, [change.path for change in taking.in_conflict(drift)])
    merged = taking.merged_versions(drift, ours, theirs, base, host.name)
    done = _changed(report, taking.local_changes(drift, theirs, merged), inventory)
    if done.pulled is None or done.pulled.conflicts:
        return done
    after = replace(drift, local=harness.local(job))
    return replace(done, pushed=_push(report, after))


def _changed(report: SyncReport, changes: Sequence[LocalChange], inventory: Inventory) -> SyncReport:
    if not changes:
        return report
    localtree.check_own(report.job, inventory)
    return replace(report, pulled=localtree.change(report.job, report.host, report.drift.local, changes))


def _push(report: SyncReport, drift: Drift) -> Pushed:
    pushed = report.session.push(drift)
    taken.forget(report.job, report.host)
    return pushed


def _settle(report: SyncReport) -> None:
    """Both sides came to be equal by other ways than a sync: from now on that counts as one, where it can be noted."""
    base = report.drift.base
    if base is None or base.digest != report.drift.local.digest:
        with suppress(Refused):
            _push(report, report.drift)


def _refuse_unresolved(report: SyncReport) -> None:
    if report.drift.unresolved:
        names = ", ".join(report.drift.unresolved)
        raise Refused(
            f"{report.job.harness_local}: conflicts of the last merge stand in {names}; nothing was changed",
            hint=f"resolve them there (<<<<<<< to >>>>>>>), then: orch sync-harness {report.job.name}",
        )
