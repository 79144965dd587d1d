"""`orch report`: one file that shows a training run's results to others."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.commands.call import calling, common


@click.command()
@click.argument("run", required=False)
@click.option("--job", help="Job whose results are shown, where the run has several.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write (else RUN-report.html).")
@click.option("--markdown", is_flag=True, help="A note in Markdown instead; on stdout without --out.")
@common
def report(
    run: str | None,
    job: str | None,
    out: Path | None,
    markdown: bool,
    as_json: bool,
    verbose: int,
    inventory: Path | None,
) -> None:
    """All results of a training run in one HTML file.

    Curves, runs, receipts, digests and harness versions. No host is asked, and the file loads nothing.
    """
    with calling("report", as_json, verbose, inventory) as call:
        from orchestrator.reports.handover import markdown as note
        from orchestrator.reports.page import page
        from orchestrator.workflows.report import report as story

        found = story(run, job)
        text = note(found) if markdown else page(found)
        call.warn(found.warnings)
        place = out if out is not None or markdown else Path(f"{_file_name(found.run)}-report.html")
        content = text.encode("utf-8", "backslashreplace")
        if place is not None:
            _write(place, content)
            if not as_json:
                count = len(found.points)
                click.echo(f"{place}: {count} result{'' if count == 1 else 's'}, {len(content) / 1000:.0f} kB")
        elif not as_json:
            click.echo(text, nl=False)
        file = str(place.resolve()) if place else None
        call.body = {"file": file, "bytes": len(content), "results": len(found.points)}
        if place is None:
            call.body["markdown"] = text


def _file_name(run: str) -> str:
    """A run's name as part of a file's: it may come from a host."""
    return "".join(char if char.isalnum() or char in "-_." else "_" for char in run)[:80].lstrip(".") or "orch"


def _write(place: Path, content: bytes) -> None:
    """The old report stays until the new one is whole. Raises ConfigError."""
    from orchestrator.errors import ConfigError
    from orchestrator.keeping import write_whole

    try:
        write_whole(place, content)
    except OSError as error:
        raise ConfigError(f"{place} can't be written: {error.strerror}", hint="--out names another file") from None
