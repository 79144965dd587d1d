"""The stories of `orch checkpoints --staged` and `orch clean`: what lies on the evaluation hosts, and what may go."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator import config
from orchestrator.actions import retention
from orchestrator.errors import OrchError
from orchestrator.model import Host, Inventory, Staged
from orchestrator.ssh.choose import Connections
from orchestrator.ssh.fleet import Outcome, on_each


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedReport:
    """What lies on the hosts that could be reached, and why others could not."""

    rows: tuple[Staged, ...]
    unreachable: tuple[OrchError, ...]


def list_staged(inventory: Inventory, host_name: str | None, connections: Connections) -> StagedReport:
    """Look at one evaluation host, or all of them at once."""
    hosts = config.eval_hosts(inventory, host_name)
    return _report(on_each(hosts, lambda host: retention.staged(connections.to(host), host, inventory.timeouts)))


def clean(
    inventory: Inventory, host_name: str | None, keep: int, connections: Connections, *, dry_run: bool
) -> StagedReport:
    """Keep the newest `keep` checkpoints of each host, and those that a run uses."""

    def one(host: Host) -> tuple[Staged, ...]:
        return retention.clean(connections.to(host), host, keep, inventory.timeouts, dry_run=dry_run)

    return _report(on_each(config.eval_hosts(inventory, host_name), one))


def _report(outcomes: list[Outcome[Host, tuple[Staged, ...]]]) -> StagedReport:
    return StagedReport(
        rows=tuple(row for outcome in outcomes for row in outcome.value or ()),
        unreachable=tuple(outcome.error for outcome in outcomes if outcome.error is not None),
    )
