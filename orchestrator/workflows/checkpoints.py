"""The story of `orch checkpoints`: what lies below a run's checkpoint root, and which is the latest complete one."""

from __future__ import annotations

from orchestrator import config
from orchestrator.actions import checkpoints, torn
from orchestrator.keeping import state_folder
from orchestrator.model import Inventory, Scan, TrainingRun
from orchestrator.ssh.choose import Connections


def scan(inventory: Inventory, run_name: str | None, connections: Connections) -> tuple[TrainingRun, Scan]:
    """Look at a run's checkpoints on its first host."""
    run = config.choose_run(inventory, run_name)
    host = inventory.hosts[run.hosts[0]]
    return run, checkpoints.scan(connections.to(host), host, run, inventory.timeouts, torn.known(state_folder()))
