"""`orch checkpoints` and `orch clean`: what lies on the training box, and what was shipped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.commands.call import Call, calling, common

if TYPE_CHECKING:
    from orchestrator.workflows.staged import StagedReport


@click.command()
@click.argument("run", required=False)
@click.option("--staged", is_flag=True, help="What lies on the evaluation hosts instead.")
@click.option("--host", help="With --staged: only this evaluation host.")
@common
def checkpoints(
    run: str | None, staged: bool, host: str | None, as_json: bool, verbose: int, inventory: Path | None
) -> None:
    """Every checkpoint of a run, complete or not, and why."""
    if staged:
        return _staged(host, as_json, verbose, inventory)
    with calling("checkpoints", as_json, verbose, inventory) as call:
        from orchestrator.errors import NothingToEvaluate
        from orchestrator.reports.documents import checkpoints_body
        from orchestrator.workflows.checkpoints import scan as look

        found = call.inventory()
        with call.connections(found) as connections:
            training_run, scan = look(found, run, connections)
        call.body = checkpoints_body(training_run.name, scan)
        if not as_json:
            from orchestrator.reports.tables import checkpoints_table

            call.show(checkpoints_table(scan))
        call.warn(scan.warnings)
        if scan.latest is None:
            raise NothingToEvaluate(f"{scan.host}: no complete checkpoint under {scan.root}", host=scan.host)


def _staged(host: str | None, as_json: bool, verbose: int, inventory: Path | None) -> None:
    with calling("staged", as_json, verbose, inventory) as call:
        from orchestrator.workflows.staged import list_staged

        found = call.inventory()
        with call.connections(found) as connections:
            report = list_staged(found, host, connections)
        _show_staged(call, report)


def _show_staged(call: Call, report: StagedReport, *, cleaned: str = "") -> None:
    from orchestrator.reports.documents import staged_body

    call.body = staged_body(report.rows, cleaned=bool(cleaned))
    if not call.as_json:
        from orchestrator.reports.tables import staged_table

        call.show(staged_table(report.rows, cleaned=cleaned))
    if report.unreachable:
        raise report.unreachable[0]


@click.command()
@click.option("--host", help="Only this evaluation host (else all of them).")
@click.option("--keep", type=click.IntRange(min=0), default=3, show_default=True, help="How many of the newest stay.")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@common
def clean(host: str | None, keep: int, dry_run: bool, as_json: bool, verbose: int, inventory: Path | None) -> None:
    """Remove old checkpoints from the evaluation hosts.

    Never one that a run uses, and never on the training box.
    """
    with calling("clean", as_json, verbose, inventory) as call:
        from orchestrator.workflows.staged import clean as story

        found = call.inventory()
        with call.connections(found) as connections:
            report = story(found, host, keep, connections, dry_run=dry_run)
        _show_staged(call, report, cleaned="would go" if dry_run else "removed")
