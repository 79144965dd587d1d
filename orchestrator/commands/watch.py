"""`orch watch`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.commands.call import Call, beside_training, calling, common, with_timeout
from orchestrator.commands.passing_on import pass_on

if TYPE_CHECKING:
    from orchestrator.workflows.watch_scene import Event

ENDS = "training-ends"


def _until(context: click.Context, option: click.Parameter, value: str | None) -> int | str | None:
    """A step as a number, or the word for the end of the training."""
    if value is None or value == ENDS:
        return value
    if value.isascii() and value.isdigit():
        return int(value)
    raise click.BadParameter(f"{value!r} is neither a step nor {ENDS}")


@click.command()
@click.argument("run", required=False)
@click.option("--job", help="Job to run (else the run's own).")
@click.option("--host", help="Evaluation host.")
@click.option(
    "--every",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Only steps that are multiples of N: not every Nth checkpoint.",
)
@click.option("--backfill", is_flag=True, help="Also the checkpoints that were there before the first watch.")
@click.option(
    "--until",
    callback=_until,
    metavar=f"STEP|{ENDS}",
    help="End once all up to this step, or to the end of the training, are evaluated.",
)
@beside_training
@with_timeout
@common
def watch(as_json: bool, verbose: int, inventory: Path | None, timeout: float | None, **flags: Any) -> None:
    """Evaluate each new complete checkpoint as it appears.

    In the order of steps, each once; shipped before rotation removes it. Ctrl-C leaves running evaluations going, and
    the same command goes on where it stopped: nothing is evaluated twice, nothing skipped. With --json one object a
    line.
    """
    with calling("watch", as_json, verbose, inventory, timeout) as call:
        from orchestrator.reports.watching import end_body
        from orchestrator.workflows import watch as story
        from orchestrator.workflows.scene import Options
        from orchestrator.workflows.watch_scene import Wanted

        call.again = _again(inventory, flags)
        call.body = end_body(None)
        found = call.inventory()
        wanted = Wanted(**{key: flags.pop(key) for key in ("every", "backfill", "until")})
        with call.connections(found) as connections:
            report = story.watch(found, Options(**flags), wanted, connections, lambda event: _tell(call, event))
        call.body = end_body(report)
        if (error := story.failure(report)) is not None:
            raise error


def _tell(call: Call, event: Event) -> None:
    """Print an event at once; a result also goes on to whom the user named."""
    from orchestrator.reports.watching import event_body, line

    if call.as_json:
        from orchestrator.reports.envelope import document

        click.echo(json.dumps(document(call.command, event_body(event))))
    else:
        call.show(line(event))
    if event.run is None or event.result is None:
        return
    for problem in pass_on(event.run, event.result):
        _tell(call, _warning(problem))


def _warning(text: str) -> Event:
    from orchestrator.workflows.watch_scene import Event

    return Event(kind="warning", text=text)


def _again(inventory: Path | None, flags: dict[str, Any]) -> str:
    """What to type to come back."""
    words = ["orch", "watch", *filter(None, [flags["run"]])]
    given = {**flags, "run": None, "every": flags["every"] if flags["every"] != 1 else None}
    given["inventory"] = inventory and inventory.absolute()
    for name, value in given.items():
        if value is not None and value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)
