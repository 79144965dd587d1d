"""JSON Schema of the files, for editors: the same definition that reads them."""

from __future__ import annotations

from typing import Any

from orchestrator.config.format import HOSTS_FILE, JOB_FILE, USER_FILE
from orchestrator.errors import ConfigError

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FILES = {
    "hosts": (HOSTS_FILE, "hosts.yaml of orch", "Machines and training runs."),
    "job": (JOB_FILE, "jobs/*.yaml of orch", "A recipe for evaluating a checkpoint."),
    "config": (USER_FILE, "config.yaml of orch", "The user's own settings on this computer."),
}


def schema(name: str) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of `hosts`, `job` or `config`. Raises ConfigError for another name."""
    if name not in FILES:
        raise ConfigError(f"no schema {name!r}; known: {', '.join(FILES)}")
    record, title, description = FILES[name]
    return {"$schema": DIALECT, "title": title, "description": description, **record.schema()}
