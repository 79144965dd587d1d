"""Parse, call one workflow, render, exit code. The only place that catches OrchError, and the only one that prints.

Data goes to stdout, everything else to stderr. Heavy imports wait until a command needs them.
"""

from __future__ import annotations

import atexit
import errno
import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from orchestrator import __version__
from orchestrator.errors import ConfigError, Interrupted, OrchError, Refused

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.actions.harness import FileDiff
    from orchestrator.model import Drift, Inventory
    from orchestrator.ssh.choose import Connections
    from orchestrator.workflows.staged import StagedReport

BROKEN_PIPE = 141
"""exit code when the reader of stdout has gone: 128 + SIGPIPE, as shells show it"""


@dataclass(kw_only=True)
class Call:
    """One call of a command: what it prints so far, and how."""

    command: str
    as_json: bool
    verbose: int
    inventory_flag: Path | None
    body: dict[str, Any] = field(default_factory=dict)
    again: str = ""
    """what to type to come back to a run that goes on"""
    warnings: list[str] = field(default_factory=list)

    def inventory(self) -> Inventory:
        from orchestrator import config

        return config.load_inventory(config.find_inventory(self.inventory_flag, os.environ, Path.cwd()))

    @contextmanager
    def connections(self, inventory: Inventory) -> Iterator[Connections]:
        from orchestrator.ssh.choose import Connections

        with Connections(inventory.timeouts, interactive=_on_a_terminal()) as connections:
            yield connections
            if self.verbose:
                for connection in connections.opened():
                    click.echo(f"{connection.host}: {connection.transport}: {connection.why}", err=True)

    def show(self, what: Any) -> None:
        """A table or lines on stdout, unless a document is wanted."""
        if not self.as_json:
            from orchestrator.reports.tables import print_to

            print_to(console(), what)

    def warn(self, warnings: Sequence[str]) -> None:
        self.warnings += warnings
        if not self.as_json:
            from orchestrator.reports.text import shown

            for warning in warnings:
                click.echo(f"warning: {shown(warning)}", err=True)


def console(*, stderr: bool = False) -> Console:
    """A rich console that honours NO_COLOR, TERM=dumb and pipes."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    piped = stream is None or not stream.isatty()
    return Console(stderr=stderr, soft_wrap=piped, width=200 if piped else None)


def _on_a_terminal() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def common(function: Callable[..., None]) -> Callable[..., None]:
    """Options that every command has."""
    function = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")(function)
    function = click.option("-v", "--verbose", count=True, help="Say which transport was taken and why.")(function)
    help_text = "hosts.yaml to use (else ORCH_INVENTORY, else the nearest one upwards from here)."
    option = click.option("--inventory", "inventory", type=click.Path(path_type=Path), help=help_text)
    return option(function)


@contextmanager
def calling(command: str, as_json: bool, verbose: int, inventory: Path | None) -> Iterator[Call]:
    """Run a command's body; print its document; turn every ending into its exit code."""
    call = Call(command=command, as_json=as_json, verbose=verbose, inventory_flag=inventory)
    error: OrchError | None = None
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the document is printed, nothing is stopped
    try:
        yield call
    except OrchError as caught:
        error = caught
    except KeyboardInterrupt:
        hint = f"to come back: {call.again}" if call.again else "the same command again goes on"
        error = Interrupted("interrupted; nothing that runs on a host was stopped", hint=hint)
    except click.ClickException:
        raise
    except BrokenPipeError:
        _leave_quietly()
    except OSError as failed:
        error = _bug(failed) if failed.errno != errno.ENOSPC else OrchError(f"a disk of this machine is full: {failed}")
    except Exception as bug:
        error = _bug(bug)
    if as_json:
        from orchestrator.reports.documents import document

        try:
            click.echo(json.dumps(document(command, call.body, call.warnings, error)))
        except BrokenPipeError:
            _leave_quietly()
    if error is not None:
        _tell(error)
        sys.exit(error.code)


def _tell(error: OrchError) -> None:
    from orchestrator.reports.text import shown_lines

    lines = shown_lines(error.message, limit=2000)
    hints = shown_lines(error.hint, limit=1000) if error.hint else []
    for index, line in enumerate((*lines, *hints)):
        click.echo(("      " if index else "orch: ") + line, err=True)


def _bug(bug: Exception) -> OrchError:
    from orchestrator.actions.ledger import state_folder

    trace = "".join(traceback.format_exception(bug))
    log = state_folder() / "last-bug.txt"
    try:
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        log.write_text(trace, encoding="utf-8")
        hint = f"the traceback is in {log}"
    except OSError as error:
        hint = f"{log} can't be written ({error.strerror}), so here is the traceback:\n{trace}"
    return OrchError(f"unexpected failure: {type(bug).__name__}: {bug}", hint=hint)


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
        _leave_quietly()
    sys.exit(status)


def _leave_quietly() -> NoReturn:
    """The reader of our output has gone, as `head` does: nobody is left to tell anything."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(BROKEN_PIPE)


def _tell_usage(error: click.ClickException) -> None:
    error.show()
    if "--json" in sys.argv:
        from orchestrator.reports.documents import document

        command = next((word for word in sys.argv[1:] if word in commands.commands), "")
        click.echo(json.dumps(document(command, {}, (), ConfigError(error.format_message()))))


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


@commands.command()
@click.argument("run", required=False)
@common
def status(run: str | None, as_json: bool, verbose: int, inventory: Path | None) -> None:
    """How training stands, which checkpoint is the latest, and what is not yet evaluated."""
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
            raise report.unreachable[0]


@commands.command()
@click.argument("run", required=False)
@click.option("--staged", is_flag=True, help="What lies on the evaluation hosts instead.")
@click.option("--host", help="With --staged: only this evaluation host.")
@common
def checkpoints(
    run: str | None, staged: bool, host: str | None, as_json: bool, verbose: int, inventory: Path | None
) -> None:
    """Every checkpoint candidate of a run, complete or not, with its reason."""
    if staged:
        return _staged(host, as_json, verbose, inventory)
    with calling("checkpoints", as_json, verbose, inventory) as call:
        from orchestrator.errors import NothingToEvaluate
        from orchestrator.reports.documents import checkpoints_body
        from orchestrator.workflows.checkpoints import scan as look

        found = call.inventory()
        with call.connections(found) as connections:
            training_run, scan = look(found, run, connections)
        call.body = checkpoints_body(training_run.name, scan)
        if not as_json:
            from orchestrator.reports.tables import checkpoints_table

            call.show(checkpoints_table(scan))
        call.warn(scan.warnings)
        if scan.latest is None:
            raise NothingToEvaluate(f"{scan.host}: no complete checkpoint under {scan.root}", host=scan.host)


def _staged(host: str | None, as_json: bool, verbose: int, inventory: Path | None) -> None:
    with calling("staged", as_json, verbose, inventory) as call:
        from orchestrator.workflows.staged import list_staged

        found = call.inventory()
        with call.connections(found) as connections:
            report = list_staged(found, host, connections)
        _show_staged(call, report, cleaned=False)


def _show_staged(call: Call, report: StagedReport, *, cleaned: bool) -> None:
    from orchestrator.reports.documents import staged_body

    call.body = staged_body(report.rows, cleaned=cleaned)
    if not call.as_json:
        from orchestrator.reports.tables import staged_table

        call.show(staged_table(report.rows, cleaned=cleaned))
    if report.unreachable:
        raise report.unreachable[0]


@commands.command()
@click.option("--host", help="Only this evaluation host (else all of them).")
@click.option("--keep", type=click.IntRange(min=0), default=3, show_default=True, help="How many of the newest stay.")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@common
def clean(host: str | None, keep: int, dry_run: bool, as_json: bool, verbose: int, inventory: Path | None) -> None:
    """Remove old checkpoints from the evaluation hosts; never one that a run uses, and never on the training box."""
    with calling("clean", as_json, verbose, inventory) as call:
        from orchestrator.workflows.staged import clean as story

        found = call.inventory()
        with call.connections(found) as connections:
            report = story(found, host, keep, connections, dry_run=dry_run)
        _show_staged(call, report, cleaned=True)


@commands.command("sync-harness")
@click.argument("job", required=False)
@click.option("--check", is_flag=True, help="Only compare: exit 0 in sync, 1 differs.")
@click.option("--yes", is_flag=True, help="Replace files that orch did not put there; they are saved beside first.")
@click.option("--host", help="Evaluation host.")
@common
def sync_harness(
    job: str | None, check: bool, yes: bool, host: str | None, as_json: bool, verbose: int, inventory: Path | None
) -> None:
    """Show how the evaluation scripts on the host differ from yours, and make them equal."""
    differs = False
    with calling("sync-harness", as_json, verbose, inventory) as call:
        from orchestrator.reports.documents import sync_body
        from orchestrator.workflows import sync_harness as story

        found = call.inventory()
        with call.connections(found) as connections:
            report = story.compare(found, job, host, connections)
            call.body = sync_body(report.host.name, report.drift, None)
            if not as_json:
                from orchestrator.reports.tables import diff_lines

                call.show(diff_lines(report.diffs, report.drift))
            if check:
                differs = report.drift.state != "in_sync"
            else:
                report = story.sync(report, found, connections, _Consent(yes))
                call.body = sync_body(report.host.name, report.drift, report.pushed)
        if report.pushed and not as_json:
            saved = f"; what was there is saved in {report.pushed.saved}" if report.pushed.saved else ""
            count = f"{len(report.pushed.paths)} of {len(report.drift.local.files)} files"
            click.echo(f"pushed {count} to {report.host.name}{saved}")
    if differs:
        sys.exit(1)


@commands.command("eval-latest")
@click.argument("run", required=False)
@click.option("--job", help="Job to run (else the run's own).")
@click.option("--step", type=int, help="Evaluate the complete checkpoint of this step instead of the latest.")
@click.option("--host", help="Evaluation host.")
@click.option("--yes", is_flag=True, help="Replace harness files that orch did not put there; they are saved first.")
@click.option("-n", "--dry-run", is_flag=True, help="Print the plan and stop.")
@click.option("-d", "--detach", is_flag=True, help="Start the evaluation and come back.")
@click.option("--allow-on-training-host", is_flag=True, help="Evaluate on a host where a training runs.")
@common
def eval_latest(as_json: bool, verbose: int, inventory: Path | None, **flags: Any) -> None:
    """Evaluate the latest complete checkpoint of a run on the evaluation box."""
    with calling("eval-latest", as_json, verbose, inventory) as call:
        from orchestrator.reports.documents import eval_body
        from orchestrator.reports.live import Live
        from orchestrator.workflows import eval_latest as story

        found = call.inventory()
        options = story.Options(**flags)
        live = Live(console(stderr=not options.dry_run), quiet=as_json)  # of a dry run, the plan is the data
        report = None
        try:
            with call.connections(found) as connections:
                report = story.eval_latest(found, options, connections, _Consent(options.yes), live)
        finally:
            live.close()
            call.warnings += live.warnings
            run, result = (report.run, report.result) if report else (live.run, None)
            call.body = eval_body(report.plan if report else live.plan, run, result)
            call.again = live.again
        if report.result is not None and not as_json:
            from orchestrator.reports.tables import results_table

            call.show(results_table(report.result, report.history))
            click.echo(f"files: {report.result.folder}", err=True)
        elif options.detach and report.run is not None and not as_json:
            click.echo(report.run.id)
        if options.dry_run and report.plan.refused:
            raise Refused(report.plan.refused[0].reason, hint=report.plan.refused[0].hint)
        if (error := story.failure(report)) is not None:
            raise error


@commands.command()
@click.argument("name")
def schema(name: str) -> None:
    """JSON Schema of a file (hosts, job) or of a command's document (status, checkpoints ...)."""
    with calling("schema", False, 0, None):
        from orchestrator.config.file_schema import schema as file_schema
        from orchestrator.reports.schema import NAMES, document_schema

        if name in ("hosts", "job"):
            found = file_schema(name)
        elif name in NAMES:
            found = document_schema(name)
        else:
            known = ", ".join(("hosts", "job", *NAMES))
            raise ConfigError(f"no schema named {name!r}", hint=f"one of: {known}")
        click.echo(json.dumps(found, indent=2))


class _Consent:
    """Asks on a terminal; elsewhere only `--yes` consents."""

    def __init__(self, yes: bool) -> None:
        self._yes = yes

    @property
    def possible(self) -> bool:
        return self._yes or _on_a_terminal()

    def __call__(self, drift: Drift, diffs: Sequence[FileDiff]) -> bool:
        if self._yes or not _on_a_terminal():
            return self._yes
        click.echo("Replace them by yours? Theirs are saved beside first. [y/N] ", nl=False, err=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")
