"""`orch sync-harness`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from orchestrator.commands.call import Consent, calling, common


@click.command("sync-harness")
@click.argument("job", required=False)
@click.option("--check", is_flag=True, help="Only compare: exit 0 in sync, 1 differs.")
@click.option("--yes", is_flag=True, help="Replace files that orch did not put there; they are saved beside first.")
@click.option("--host", help="Evaluation host.")
@common
def sync_harness(
    job: str | None, check: bool, yes: bool, host: str | None, as_json: bool, verbose: int, inventory: Path | None
) -> None:
    """Show how the scripts there differ from yours; sync."""
    differs = False
    with calling("sync-harness", as_json, verbose, inventory) as call:
        from orchestrator.reports.documents import sync_body
        from orchestrator.workflows import sync_harness as story

        found = call.inventory()
        with call.connections(found) as connections:
            report = story.compare(found, job, host, connections)
            call.body = sync_body(report.host.name, report.drift, None)
            if not as_json:
                from orchestrator.reports.tables import diff_lines

                call.show(diff_lines(report.diffs, report.drift))
            if check:
                differs = report.drift.state != "in_sync"
            else:
                report = story.sync(report, found, connections, Consent(yes))
                call.body = sync_body(report.host.name, report.drift, report.pushed)
        if report.pushed and not as_json:
            saved = f"; what was there is saved in {report.pushed.saved}" if report.pushed.saved else ""
            count = f"{len(report.pushed.paths)} of {len(report.drift.local.files)} files"
            click.echo(f"pushed {count} to {report.host.name}{saved}")
    if differs:
        sys.exit(1)
