"""What lies staged on evaluation hosts, and the verb `clean`."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.answers import Json
from orchestrator.model import Host, Staged, Timeouts
from orchestrator.ssh.agent import ask
from orchestrator.ssh.connection import Connection


def staged(connection: Connection, host: Host, timeouts: Timeouts) -> tuple[Staged, ...]:
    """All that lies there, the newest first; shipments that have not ended last."""
    answer = ask(connection, host, "staged", {"workdir": host.workdir}, role="eval", timeouts=timeouts)
    return tuple(_staged(host, row) for row in answer["staged"])


def clean(
    connection: Connection,
    host: Host,
    keep: int,
    timeouts: Timeouts,
    *,
    dry_run: bool = False,
    among: Sequence[str] | None = None,
) -> tuple[Staged, ...]:
    """Remove all but the newest `keep` and what runs use; each row says whether it went, or why it stays.

    `among` are identities, the newest last: as if only these lay there.
    """
    args = {
        "workdir": host.workdir,
        "keep": keep,
        "dry_run": dry_run,
        "among": None if among is None else list(among),
    }
    answer = ask(connection, host, "clean", args, role="eval", timeouts=timeouts)
    return tuple(_staged(host, row) for row in answer["staged"])


def _staged(host: Host, row: Json) -> Staged:
    return Staged(
        host=host.name,
        identity=row["identity"],
        step=row["step"],
        bytes=row["bytes"],
        path=row["path"],
        source=row["source"] or "",
        staged_at=row["staged_at"],
        whole=row["whole"],
        used_by=tuple(row["used_by"]),
        removed=bool(row.get("removed")),
        why=row.get("why") or "",
    )
