"""`orch eval-latest`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.commands.call import Call, Consent, beside_training, calling, common, console, with_timeout
from orchestrator.commands.passing_on import pass_on
from orchestrator.errors import Refused

if TYPE_CHECKING:
    from orchestrator.model import Inventory, Plan
    from orchestrator.ssh.choose import Connections
    from orchestrator.workflows.eval_latest import EvalReport, Listener


@click.command("eval-latest")
@click.argument("run", required=False)
@click.option("--job", help="Job to run (else the run's own).")
@click.option("--step", type=int, help="Evaluate the complete checkpoint of this step instead of the latest.")
@click.option("--host", help="Evaluation host.")
@click.option("--yes", is_flag=True, help="Replace harness files that orch did not put there; they are saved first.")
@click.option("-n", "--dry-run", is_flag=True, help="Print the plan and stop.")
@click.option("-d", "--detach", is_flag=True, help="Start the evaluation and come back.")
@beside_training
@with_timeout
@common
def eval_latest(as_json: bool, verbose: int, inventory: Path | None, timeout: float | None, **flags: Any) -> None:
    """Evaluate the latest complete checkpoint of a run.

    Plan, sync the harness, ship the weights, evaluate on the evaluation box, follow, show the result. The same
    command again goes on where it was interrupted.
    """
    with calling("eval-latest", as_json, verbose, inventory, timeout) as call:
        from orchestrator.workflows import eval_latest as story

        found = call.inventory()
        options = story.Options(**flags)
        tell = partial(story.eval_latest, found, options)
        evaluate(call, found, tell, yes=options.yes, dry_run=options.dry_run, detach=options.detach)


Tell = Callable[["Connections", Consent, "Listener"], "EvalReport"]
"""a story that evaluates, but for what it works with"""


def evaluate(call: Call, found: Inventory, tell: Tell, *, yes: bool, dry_run: bool, detach: bool) -> None:
    """Tell such a story: show what happens meanwhile and the result, and raise what it amounts to."""
    from orchestrator.reports.documents import eval_body
    from orchestrator.reports.live import Live
    from orchestrator.workflows.eval_latest import failure

    # of a dry run, the plan is the data
    live = Live(console(stderr=not dry_run), quiet=call.as_json, stays=not (detach or dry_run), on_result=pass_on)
    report = None
    try:
        with call.connections(found) as connections:
            report = tell(connections, Consent(yes), live)
    except Refused as refused:
        raise call.as_said(refused, _refusals(live.plan), sys.stdout if dry_run else sys.stderr) from None
    finally:
        live.close()
        call.warnings += live.warnings
        run, result = (report.run, report.result) if report else (live.run, None)
        call.body = eval_body(report.plan if report else live.plan, run, result)
        call.again = live.again
    if report.result is not None and not call.as_json:
        from orchestrator.reports.receipts import receipt_line
        from orchestrator.reports.tables import results_table

        call.show(results_table(report.result, report.history))
        call.show(receipt_line(report.result.receipt))
        click.echo(f"files: {report.result.folder}", err=True)
    elif detach and report.run is not None and not call.as_json:
        click.echo(report.run.id)
    if dry_run and report.plan.refused:
        first = report.plan.refused[0]
        raise call.as_said(Refused(first.reason, hint=first.hint), _refusals(report.plan), sys.stdout)
    if (error := failure(report)) is not None:
        raise error


def _refusals(plan: Plan | None) -> list[str]:
    """What a plan says of why it is refused."""
    return [refusal.reason for refusal in plan.refused] if plan else []
