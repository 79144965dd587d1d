"""The command line: all commands, and the end of every call."""

from __future__ import annotations

import atexit
import gc
import os
import sys

import click

from orchestrator import __version__
from orchestrator.commands.attach import attach, rerun
from orchestrator.commands.call import leave_quietly
from orchestrator.commands.checkpoints import checkpoints, clean
from orchestrator.commands.eval_latest import eval_latest
from orchestrator.commands.guard import guard
from orchestrator.commands.ledger import ledger
from orchestrator.commands.logs import logs
from orchestrator.commands.preflight import preflight
from orchestrator.commands.receipt import receipt
from orchestrator.commands.report import report
from orchestrator.commands.results import compare, results
from orchestrator.commands.runs import cancel, runs
from orchestrator.commands.schema import schema
from orchestrator.commands.status import status
from orchestrator.commands.sync_harness import sync_harness
from orchestrator.commands.watch import watch
from orchestrator.errors import ConfigError, Interrupted


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="orch")
def commands() -> None:
    """How good is the live training run right now?

    orch finds the latest complete checkpoint on the training box, makes the evaluation scripts on the evaluation box
    equal to yours, ships the weights across and evaluates them there on CPU, without touching the training.
    """
    # what imports make stays to the end: looking for garbage there costs a tenth of them, and as much again at the exit
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)


for command in (
    *(status, preflight, eval_latest, watch, sync_harness, checkpoints, clean),
    *(runs, logs, attach, cancel, rerun),
    *(results, compare, report, ledger),
    *(receipt, guard, schema),
):
    commands.add_command(command)


def main() -> None:
    """Run the command line; the end of every call."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    try:
        status = commands(prog_name="orch", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        _tell_usage(error)
        status = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        status = Interrupted.code
    except BrokenPipeError:
        leave_quietly()
    sys.exit(status)


def _tell_usage(error: click.ClickException) -> None:
    error.show()
    if "--json" in sys.argv:
        from orchestrator.reports.envelope import document, dumped

        command = next((word for word in sys.argv[1:] if word in commands.commands), "")
        click.echo(dumped(document(command, {}, (), ConfigError(error.format_message()))))
