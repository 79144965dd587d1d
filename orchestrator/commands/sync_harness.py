"""`orch sync-harness`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.commands.call import Call, Consent, calling, common
from orchestrator.errors import Refused

if TYPE_CHECKING:
    from orchestrator.workflows.sync_harness import SyncReport


@click.command("sync-harness")
@click.argument("job", required=False)
@click.option("--check", is_flag=True, help="Only compare: exit 0 in sync, 1 differs.")
@click.option("--keep-remote", is_flag=True, help="Bring the host's edits into your files, for review.")
@click.option("--take-local", is_flag=True, help="Replace the host's edits; they are saved beside first.")
@click.option("--merge", is_flag=True, help="Put the host's edits and yours together, then push.")
@click.option("--add", multiple=True, metavar="PATH", help="With the two: also a file that only the host has.")
@click.option("--yes", is_flag=True, help="As --take-local; with --keep-remote: also over uncommitted files.")
@click.option("--host", help="Evaluation host.")
@common
def sync_harness(
    job: str | None,
    check: bool,
    keep_remote: bool,
    take_local: bool,
    merge: bool,
    add: tuple[str, ...],
    yes: bool,
    host: str | None,
    as_json: bool,
    verbose: int,
    inventory: Path | None,
) -> None:
    """Show how the scripts there differ from yours; sync."""
    if sum((check, keep_remote, take_local, merge)) > 1:
        raise click.UsageError("--check, --keep-remote, --take-local and --merge exclude each other")
    if add and not (keep_remote or merge):
        raise click.UsageError("--add goes with --keep-remote or --merge")
    differs = False
    with calling("sync-harness", as_json, verbose, inventory) as call:
        from orchestrator.reports.documents import sync_body
        from orchestrator.workflows import sync_harness as story

        found = call.inventory()
        with (
            call.connections(found) as connections,
            story.compared(found, job, host, connections, add) as report,
        ):
            call.body = sync_body(report)
            call.warn(report.notes)
            if not as_json:
                from orchestrator.reports.tables import diff_lines

                call.show(diff_lines(report.diffs, report.drift))
            if check:
                differs = report.drift.state != "in_sync"
            elif keep_remote:
                report = story.keep_remote(report, found, connections, yes)
            elif merge:
                report = story.merge(report, found, connections)
            else:
                report = story.sync(report, Consent(yes or take_local))
            call.body = sync_body(report)
        _tell(call, report)
        if report.pulled and report.pulled.conflicts:
            raise _conflicts(report)
    if differs:
        sys.exit(1)


def _tell(call: Call, report: SyncReport) -> None:
    """What was done, in words."""
    if call.as_json:
        return
    pulled, pushed = report.pulled, report.pushed
    if pulled:
        saved = f"; what was here is saved in {pulled.saved}" if pulled.saved else ""
        count = f"{len(pulled.paths)} of the changes on {report.host.name}"
        click.echo(f"brought {count} into {pulled.folder}{saved}")
        if pulled.git:
            click.echo(f"to review: git -C {pulled.folder} diff", err=True)
        if not pushed and not pulled.conflicts:
            click.echo(f"then: orch sync-harness {report.job.name}", err=True)
    if pushed:
        saved = f"; what was there is saved in {pushed.saved}" if pushed.saved else ""
        count = f"{len(pushed.paths)} of {len(report.drift.local.files)} files"
        click.echo(f"pushed {count} to {report.host.name}{saved}")


def _conflicts(report: SyncReport) -> Refused:
    names = ", ".join(report.pulled.conflicts) if report.pulled else ""
    return Refused(
        f"{report.job.harness_local}: conflicts in {names}; nothing was pushed",
        hint=f"resolve them there (<<<<<<< to >>>>>>>), then: orch sync-harness {report.job.name}",
    )
