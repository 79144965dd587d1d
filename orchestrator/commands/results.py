"""`orch results` and `orch compare`: what this computer knows. No host is asked."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from orchestrator.commands.call import calling, common


def _one_form(as_csv: bool, as_json: bool) -> None:
    from orchestrator.errors import ConfigError

    if as_csv and as_json:
        raise ConfigError("--csv and --json exclude each other", hint="give one of them")


def _csv(function: click.decorators.FC) -> click.decorators.FC:
    return click.option("--csv", "as_csv", is_flag=True, help="Comma-separated lines on stdout.")(function)


@click.command()
@click.argument("run", required=False)
@click.option("--last", type=click.IntRange(min=1), help="Only the newest N of each run (a table shows 10).")
@_csv
@common
def results(
    run: str | None, last: int | None, as_csv: bool, as_json: bool, verbose: int, inventory: Path | None
) -> None:
    """Headline by step, as the ledger knows it.

    Of a training run, or of all that have results. No host is asked.
    """
    with calling("results", as_json, verbose, inventory) as call:
        from orchestrator.reports import answers
        from orchestrator.workflows.results import results as story

        _one_form(as_csv, as_json)
        found = story(run, last if as_json or as_csv or last else answers.LAST)
        if as_json:
            call.body = answers.results_body(found)
        elif as_csv:
            click.echo(answers.results_csv(found), nl=False)
        else:
            _print(answers.results_lines(found, unicode=_speaks_unicode()))
        if not found:
            call.warn(["no results yet: orch eval-latest makes one, orch ledger rebuild finds those of before"])


@click.command()
@click.argument("a")
@click.argument("b", default="baseline")
@click.option("--run", help="Training run that latest and step:N are of, where the ledger knows several.")
@click.option("--job", help="Job that they are of, likewise.")
@click.option("--mixed", is_flag=True, help="Compare also what different harnesses or data measured; it is marked.")
@click.option("--fail-if-worse", is_flag=True, help="Exit 8 when A is worse than B, or nothing says so.")
@_csv
@common
def compare(
    a: str,
    b: str,
    run: str | None,
    job: str | None,
    mixed: bool,
    fail_if_worse: bool,
    as_csv: bool,
    as_json: bool,
    verbose: int,
    inventory: Path | None,
) -> None:
    """Is result A better than B, item by item?

    A and B are a run id or the beginning of one, latest, step:N, or baseline (also where B is left out). The difference
    is paired over the items, such as prompts, that both measured.
    """
    with calling("compare", as_json, verbose, inventory) as call:
        from orchestrator.reports import answers
        from orchestrator.workflows.compare import compare as story
        from orchestrator.workflows.compare import judged

        _one_form(as_csv, as_json)
        report = story(a, b, run=run, job=job, mixed=mixed)
        call.body = answers.compare_body(report)
        if as_csv:
            click.echo(answers.compare_csv(report), nl=False)
        elif not as_json:
            _print(answers.compare_lines(report))
        call.warn(report.warnings)
        if fail_if_worse and (error := judged(report)) is not None:
            raise error


def _print(lines: Iterable[str]) -> None:
    from orchestrator.reports.text import wants_colour

    colour = wants_colour(os.environ, sys.stdout.isatty())
    if text := "\n".join(lines):
        click.echo(text, color=colour)


def _speaks_unicode() -> bool:
    from orchestrator.reports.text import speaks_unicode

    return speaks_unicode(sys.stdout.encoding)
