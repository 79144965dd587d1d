"""The command line: all commands, and the end of every call."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from importlib import import_module

import click

from orchestrator import __version__
from orchestrator.errors import ConfigError, Interrupted

COMMANDS = {
    **dict.fromkeys(("status", "preflight", "eval-latest", "watch", "sync-harness")),
    **dict.fromkeys(("checkpoints", "clean"), "checkpoints"),
    **dict.fromkeys(("runs", "cancel"), "runs"),
    **dict.fromkeys(("attach", "rerun"), "attach"),
    **dict.fromkeys(("results", "compare"), "results"),
    **dict.fromkeys(("logs", "report", "ledger", "receipt", "guard", "schema")),
}
"""command -> its file in orchestrator/commands, where that has another name"""


class Commands(click.Group):
    """Loads the command that is called and no other: all of them take as long as the ledger takes to answer."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Their names, in alphabetical order."""
        return sorted(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The command of that name, else None."""
        if name not in COMMANDS:
            return None
        function = name.replace("-", "_")
        command: click.Command = getattr(import_module(f"orchestrator.commands.{COMMANDS[name] or function}"), function)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="orch")
def commands() -> None:
    """How good is the live training run right now?

    orch finds the latest complete checkpoint on the training box, makes the evaluation scripts on the evaluation box
    equal to yours, ships the weights across and evaluates them there on CPU, without touching the training.
    """
    # what imports make stays to the end: looking for garbage there costs a tenth of them, and as much again at the exit
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)


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
        from orchestrator.commands.call import leave_quietly

        leave_quietly()
    sys.exit(status)


def _tell_usage(error: click.ClickException) -> None:
    error.show()
    if "--json" in sys.argv:
        from orchestrator.reports.envelope import document, dumped

        command = next((word for word in sys.argv[1:] if word in COMMANDS), "")
        click.echo(dumped(document(command, {}, (), ConfigError(error.format_message()))))
