"""`orch guard`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.commands.call import Call, calling, common, console
from orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from orchestrator.model import TrainingRun


@click.command(options_metavar="[OPTIONS]", short_help="Watch training while a command of yours runs.")
@click.argument("run")
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND...")
@common
def guard(run: str, command: tuple[str, ...], as_json: bool, verbose: int, inventory: Path | None) -> None:
    """Watch a training run while a command of your own runs, and say whether training was disturbed.

    Everything behind `--` is the command. It keeps the terminal, signals are passed on to it, and its exit code is
    this command's, but for 9: training changed or died meanwhile, or within a minute after. With --json, the command's
    stdout goes to stderr.
    """
    with calling("guard", as_json, verbose, inventory) as call:
        from orchestrator.reports.receipts import guard_body, receipt_line
        from orchestrator.reports.tables import print_to
        from orchestrator.workflows import guard as story

        if shutil.which(command[0]) is None:
            raise ConfigError(f"no command {command[0]!r} here")
        found = call.inventory()
        output = sys.stderr.fileno() if as_json else None
        with call.connections(found) as connections:
            guarded = story.guard(found, run, command, connections, _Listener(call), output)
        call.body = guard_body(guarded)
        if guarded.not_kept:
            call.warn([guarded.not_kept])
        if (error := story.failure(guarded)) is not None:
            raise error
        if not as_json:
            print_to(console(stderr=True), receipt_line(guarded.receipt))
            if guarded.id:
                click.echo(f"orch receipt {guarded.id} shows all of it", err=True)
    sys.exit(guarded.exit_code)


class _Listener:
    """Says on stderr, beside the command's own output, what a person must know."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def watching(self, run: TrainingRun, sample: Mapping[str, object], host: str) -> None:
        if sample.get("identity") is None:
            reason = sample.get("reason") or sample.get("state")
            self._call.warn([f"{host}: no training process of run {run.name} to watch: {reason}"])

    def ended(self, exit_code: int, seconds: float) -> None:
        if not self._call.as_json and seconds >= 1:
            text = f"the command ended with exit code {exit_code}; watching training for {seconds:.0f} s more"
            click.echo(f"{text} (Ctrl-C ends that)", err=True)
