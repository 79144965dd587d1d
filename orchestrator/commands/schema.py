"""`orch schema`."""

from __future__ import annotations

import json

import click

from orchestrator.commands.call import calling
from orchestrator.errors import ConfigError


@click.command()
@click.argument("name")
def schema(name: str) -> None:
    """JSON Schema of a file or a command's document.

    NAME is hosts, job, or a command such as status.
    """
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
