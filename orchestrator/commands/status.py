"""`orch status`."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.commands.call import calling, common


@click.command()
@click.argument("run", required=False)
@common
def status(run: str | None, as_json: bool, verbose: int, inventory: Path | None) -> None:
    """How training, checkpoints and evaluations stand.

    Both boxes are asked at once: progress, the latest complete checkpoint, and what is not yet evaluated.
    """
    with calling("status", as_json, verbose, inventory) as call:
        from orchestrator.reports.documents import status_body
        from orchestrator.workflows.status import status as look

        found = call.inventory()
        with call.connections(found) as connections:
            report = look(found, run, connections)
        call.body = status_body(report)
        if not as_json:
            from orchestrator.reports.tables import status_table

            call.show(status_table(report))
        call.warn(report.warnings)
        if report.unreachable:
            raise call.said(report.unreachable)
