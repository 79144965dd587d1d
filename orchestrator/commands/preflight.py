"""`orch preflight`."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.commands.call import calling, common
from orchestrator.errors import Refused


@click.command()
@click.argument("job", required=False)
@click.argument("run", required=False)
@click.option("--host", help="Evaluation host.")
@common
def preflight(
    job: str | None, run: str | None, host: str | None, as_json: bool, verbose: int, inventory: Path | None
) -> None:
    """Try what an evaluation needs, before shipping."""
    with calling("preflight", as_json, verbose, inventory) as call:
        from orchestrator.reports.documents import preflight_body
        from orchestrator.workflows.preflight import preflight_job

        found = call.inventory()
        with call.connections(found) as connections:
            report = preflight_job(found, job, run, host, connections)
        call.body = preflight_body(report)
        if not as_json:
            from orchestrator.reports.tables import preflight_table

            call.show(preflight_table(report))
        if report.unreachable is not None:
            raise report.unreachable
        if report.failed:
            names = ", ".join(check.name for check in report.failed)
            hint = report.failed[0].hint
            message = f"{report.host.name}: {report.job.name} would fail at: {names}"
            raise Refused(message, hint=hint, host=report.host.name)
