"""`orch receipt`."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.commands.call import calling, common


@click.command(short_help="What training did while orch was at work.")
@click.argument("run")
@common
def receipt(run: str, as_json: bool, verbose: int, inventory: Path | None) -> None:
    """What training did while orch was at work on its box, in full.

    RUN is the id of an evaluation or of a guarded command, a beginning that only it has, the name of a training run
    (its latest), or `latest`. Nothing is asked of any host: receipts are kept on this machine.
    """
    with calling("receipt", as_json, verbose, inventory) as call:
        from orchestrator.actions import receipt_files
        from orchestrator.keeping import state_folder
        from orchestrator.reports.receipts import receipt_body

        kept = receipt_files.find(state_folder(), run)
        call.body = receipt_body(kept)
        if not as_json:
            from orchestrator.reports.receipts import receipt_view

            call.show(receipt_view(kept))
