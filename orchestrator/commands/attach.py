"""`orch attach` and `orch rerun`: a run by its id."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.commands.call import Consent, beside_training, calling, common, with_timeout
from orchestrator.commands.eval_latest import evaluate

if TYPE_CHECKING:
    from orchestrator.ssh.choose import Connections
    from orchestrator.workflows.eval_latest import EvalReport, Listener


@click.command()
@click.argument("run")
@click.option("--host", help="Evaluation host, where the id alone does not tell.")
@with_timeout
@common
def attach(
    run: str, host: str | None, as_json: bool, verbose: int, inventory: Path | None, timeout: float | None
) -> None:
    """Follow a run to its end and bring its result home.

    RUN is an id, the beginning of one, or `latest`.
    """
    with calling("attach", as_json, verbose, inventory, timeout) as call:
        from orchestrator.workflows import attach as story

        found = call.inventory()

        def tell(connections: Connections, _: Consent, listener: Listener) -> EvalReport:
            return story.attach(found, run, host, connections, listener)

        evaluate(call, found, tell, yes=False, dry_run=False, detach=False)


@click.command()
@click.argument("run")
@click.option("--host", help="Evaluation host, where the id alone does not tell.")
@click.option("--yes", is_flag=True, help="Replace harness files that orch did not put there; they are saved first.")
@click.option("-n", "--dry-run", is_flag=True, help="Print the plan and stop.")
@click.option("-d", "--detach", is_flag=True, help="Start the evaluation and come back.")
@beside_training
@with_timeout
@common
def rerun(
    run: str,
    host: str | None,
    yes: bool,
    dry_run: bool,
    detach: bool,
    allow_on_training_host: bool,
    as_json: bool,
    verbose: int,
    inventory: Path | None,
    timeout: float | None,
) -> None:
    """Evaluate the checkpoint of a run once more.

    A new run, with the harness and the job as they are here now. RUN is an id, the beginning of one, or `latest`.
    """
    with calling("rerun", as_json, verbose, inventory, timeout) as call:
        from orchestrator.workflows import attach as story

        found = call.inventory()
        tell = partial(
            story.rerun,
            found,
            run,
            host,
            detach=detach,
            dry_run=dry_run,
            allow_on_training_host=allow_on_training_host,
        )
        evaluate(call, found, tell, yes=yes, dry_run=dry_run, detach=detach)
