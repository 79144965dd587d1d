"""One call of a command: what it prints, how it ends, and the options that every command has.

Data goes to stdout, everything else to stderr. The only place that catches OrchError.
"""

from __future__ import annotations

import copy
import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click

from orchestrator.errors import Interrupted, OrchError, RemotePythonError, TimeLimit

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.actions.harness_diff import FileDiff
    from orchestrator.model import Drift, Inventory
    from orchestrator.ssh.choose import Connections

PIPED = 200
"""columns of a table that goes into a pipe, unless COLUMNS says otherwise"""
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

        found = config.load_inventory(config.find_inventory(self.inventory_flag, os.environ, Path.cwd()))
        return replace(found, named=self.inventory_flag and self.inventory_flag.absolute())

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

    def said(self, errors: Sequence[OrchError]) -> OrchError:
        """The first of the errors that a table held, to end with.

        Without its message where table and error go to a terminal, unless one is of several lines: a table folds those.
        """
        first = errors[0]
        if isinstance(first, RemotePythonError):  # it did answer
            return first
        read_together = all(map(_is_terminal, (sys.stdout, sys.stderr)))
        if self.as_json or not read_together or any("\n" in error.message for error in errors):
            return first
        return _shortened(first, f"no answer from {', '.join(error.host or 'a host' for error in errors)}", first.hint)

    def as_said(self, error: OrchError, said: Sequence[str], stream: TextIO) -> OrchError:
        """An error to end with; in short where `stream`, which holds all these reasons of it, goes where errors go."""
        if self.as_json or error.message not in (*said, "; ".join(said)) or not _read_together(stream):
            return error
        return _shortened(error, "refused")

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
    width = os.environ.get("COLUMNS", "")
    wide = int(width) if width.isdecimal() and len(width) < 6 else 0
    return Console(stderr=stderr, soft_wrap=piped, width=(wide or PIPED) if piped else None)


def _on_a_terminal() -> bool:
    return all(map(_is_terminal, (sys.stdin, sys.stderr)))


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _shortened(error: OrchError, message: str, hint: str = "") -> OrchError:
    """The same error for who has read the whole of it already."""
    short = copy.copy(error)
    short.message, short.hint = f"{message}, as said above", hint
    return short


def _read_together(stream: TextIO) -> bool:
    """Whether one reader sees both this stream and stderr."""
    if stream is sys.stderr or (_is_terminal(stream) and _is_terminal(sys.stderr)):
        return True
    try:
        return os.path.sameopenfile(stream.fileno(), sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return False


def common(function: Callable[..., None]) -> Callable[..., None]:
    """Options that every command has."""
    function = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")(function)
    function = click.option("-v", "--verbose", count=True, help="Say which transport was taken and why.")(function)
    help_text = "hosts.yaml to use (else ORCH_INVENTORY, else the nearest one upwards from here)."
    option = click.option("--inventory", "inventory", type=click.Path(path_type=Path), help=help_text)
    return option(function)


def with_timeout(function: Callable[..., None]) -> Callable[..., None]:
    """The option of commands that stay until something has ended."""
    help_text = "Come back after so long (90s, 2h) with exit code 124; what runs on a host goes on."
    return click.option("--timeout", callback=_duration, metavar="DURATION", help=help_text)(function)


def beside_training(function: Callable[..., None]) -> Callable[..., None]:
    """The option of commands that may start an evaluation."""
    help_text = "Evaluate on a host where a training runs."
    return click.option("--allow-on-training-host", is_flag=True, help=help_text)(function)


def _duration(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    from orchestrator.config.units import duration

    try:
        return duration(value)
    except ValueError as error:
        raise click.BadParameter(f"expected {error}, found {value!r}") from None


class _TimeIsUp(KeyboardInterrupt):
    """Comes as Ctrl-C does: what stops for that stops for this."""


@contextmanager
def _for_at_most(seconds: float | None) -> Iterator[None]:
    """Raises _TimeIsUp inside once so many seconds have passed."""

    def time_is_up(number: int, frame: object) -> NoReturn:
        raise _TimeIsUp

    if seconds is not None:
        signal.signal(signal.SIGALRM, time_is_up)
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        if seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def calling(
    command: str, as_json: bool, verbose: int, inventory: Path | None, timeout: float | None = None
) -> Iterator[Call]:
    """Run a command's body, for `timeout` seconds at most; print its document; turn every ending into its exit code."""
    call = Call(command=command, as_json=as_json, verbose=verbose, inventory_flag=inventory)
    error: OrchError | None = None
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the document is printed, nothing is stopped
    try:
        with _for_at_most(timeout):
            yield call
    except OrchError as caught:
        error = caught
    except KeyboardInterrupt as ending:
        hint = f"to come back: {call.again}" if call.again else "the same command again goes on"
        kept = "nothing that runs on a host was stopped"
        if isinstance(ending, _TimeIsUp):
            error = TimeLimit(f"the time of --timeout is up; {kept}", hint=hint)
        else:
            error = Interrupted(f"interrupted; {kept}", hint=hint)
    except click.ClickException:
        raise
    except BrokenPipeError:
        leave_quietly()
    except OSError as failed:
        error = _bug(failed) if failed.errno != errno.ENOSPC else OrchError(f"a disk of this machine is full: {failed}")
    except Exception as bug:
        error = _bug(bug)
    if as_json:
        from orchestrator.reports.envelope import document, dumped

        try:
            click.echo(dumped(document(command, call.body, call.warnings, error)))
        except BrokenPipeError:
            leave_quietly()
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
    import traceback

    from orchestrator.keeping import state_folder

    trace = "".join(traceback.format_exception(bug))
    log = state_folder() / "last-bug.txt"
    try:
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        log.write_text(trace, encoding="utf-8")
        hint = f"the traceback is in {log}"
    except OSError as error:
        hint = f"{log} can't be written ({error.strerror}), so here is the traceback:\n{trace}"
    return OrchError(f"unexpected failure: {type(bug).__name__}: {bug}", hint=hint)


def leave_quietly() -> NoReturn:
    """The reader of our output has gone, as `head` does: nobody is left to tell anything."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(BROKEN_PIPE)


class Consent:
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
