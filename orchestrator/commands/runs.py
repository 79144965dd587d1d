"""`orch runs` and `orch cancel`."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.commands.call import calling, common

GRACE = 30.0
"""seconds between TERM and KILL"""


@click.command()
@click.argument("run", required=False)
@click.option("--host", help="Only this evaluation host (else all of them).")
@click.option("--all", "everything", is_flag=True, help="Every run, not only the newest of each host.")
@common
def runs(
    run: str | None, host: str | None, everything: bool, as_json: bool, verbose: int, inventory: Path | None
) -> None:
    """The evaluations on every evaluation host, and how they stand.

    Of a training run, or of all.
    """
    with calling("runs", as_json, verbose, inventory) as call:
        from orchestrator.reports.documents import runs_body
        from orchestrator.workflows.runs import list_runs

        found = call.inventory()
        with call.connections(found) as connections:
            report = list_runs(found, host, connections, of=run)
        call.body = runs_body(report)
        if not as_json:
            from orchestrator.reports.tables import runs_table

            call.show(runs_table(report, everything=everything))
        if report.unreachable:
            raise call.said(report.unreachable)


@click.command()
@click.argument("run")
@click.option("--host", help="Evaluation host, where the id alone does not tell.")
@click.option(
    "--grace", type=click.FloatRange(min=0, max=3600), default=GRACE, show_default=True, help="Seconds until KILL."
)
@common
def cancel(run: str, host: str | None, grace: float, as_json: bool, verbose: int, inventory: Path | None) -> None:
    """End a run and everything that it started.

    TERM first, KILL after the grace, and done only when nothing of it is left. RUN is an id, the beginning of one, or
    `latest`.
    """
    with calling("cancel", as_json, verbose, inventory) as call:
        from orchestrator.errors import EvaluationFailed
        from orchestrator.reports.documents import cancel_body
        from orchestrator.reports.text import shown
        from orchestrator.workflows import runs as story

        found = call.inventory()
        with call.connections(found) as connections:
            done = story.cancel(found, run, host, grace, connections)
        call.body = cancel_body(done)
        if not as_json:
            had = "" if done.before in ("queued", "running") else "had ended before: "
            why = f": {shown(done.run.reason)}" if done.run.reason else ""
            click.echo(f"run {shown(done.run.id)} on {done.run.host}: {had}{done.run.state}{why}")
        if done.left:
            left = ", ".join(map(str, done.left))
            raise EvaluationFailed(f"processes {left} could not be ended", hint="see them there", host=done.run.host)
