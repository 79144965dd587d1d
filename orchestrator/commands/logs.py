"""`orch logs`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from orchestrator.commands.call import calling, common, with_timeout

LINES = 200


@click.command()
@click.argument("run")
@click.option("-f", "--follow", is_flag=True, help="Stay until the run has ended.")
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), default=LINES, show_default=True, help="How many lines to begin with."
)
@click.option("--all", "everything", is_flag=True, help="Begin with the first byte.")
@click.option("--host", help="Evaluation host, where the id alone does not tell.")
@with_timeout
@common
def logs(
    run: str,
    follow: bool,
    lines: int,
    everything: bool,
    host: str | None,
    as_json: bool,
    verbose: int,
    inventory: Path | None,
    timeout: float | None,
) -> None:
    """What a run has said so far.

    What a progress bar has overwritten is left out. With --json one object a line. RUN is an id, the beginning of one,
    or `latest`.
    """
    with calling("logs", as_json, verbose, inventory, timeout) as call:
        from orchestrator.actions.runs import Reading
        from orchestrator.reports.loglines import LogLines
        from orchestrator.workflows import attach as story

        found = call.inventory()
        printed = LogLines(sys.stdout, sys.stderr, as_json=as_json)
        reading = Reading(lines=None if everything else lines, all=everything, within=None if follow else 0.0)
        try:
            with call.connections(found) as connections:
                ended = story.logs(
                    found,
                    run,
                    host,
                    reading,
                    connections,
                    found=printed.found,
                    on_look=printed.looked,
                    warned=printed.warned,
                )
            printed.ended(ended)
        finally:
            printed.close()
            call.warnings += printed.warnings
            call.body = printed.body
            call.again = found.typed("logs", "-f", printed.run_id) if printed.run_id else ""
