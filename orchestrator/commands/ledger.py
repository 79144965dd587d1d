"""`orch ledger`: the index of results on this computer."""

from __future__ import annotations

import os
from pathlib import Path

import click

from orchestrator.commands.call import calling, common


@click.group()
def ledger() -> None:
    """The index of results on this computer."""


@ledger.command()
@click.option("--local", is_flag=True, help="Only from the run folders on this computer; no host is asked.")
@common
def rebuild(local: bool, as_json: bool, verbose: int, inventory: Path | None) -> None:
    """Make the index anew from the run folders.

    From those on this computer, and from finished runs on the evaluation hosts that can be reached.
    """
    with calling("ledger-rebuild", as_json, verbose, inventory) as call:
        from orchestrator.reports.documents import rebuild_body
        from orchestrator.workflows.rebuild import rebuild as story

        if local or not _has_inventory(inventory):
            report = story(None, None)
        else:
            found = call.inventory()
            with call.connections(found) as connections:
                report = story(found, connections)
        call.body = rebuild_body(report)
        if not as_json:
            brought = f", {len(report.collected)} runs brought home now" if report.collected else ""
            click.echo(f"{report.results} results{brought}")
        call.warn(report.warnings)


def _has_inventory(flag: Path | None) -> bool:
    """Whether a hosts.yaml is named or lies here; without one there are no hosts to ask."""
    from orchestrator import config
    from orchestrator.errors import ConfigError

    if flag is not None or os.environ.get("ORCH_INVENTORY"):
        return True
    try:
        config.find_inventory(None, os.environ, Path.cwd())
    except ConfigError:
        return False
    return True
