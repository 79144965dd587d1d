"""The story of `orch guard`: watch training on all its hosts while a command of the user's runs, and a while after."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from orchestrator import config, receipts
from orchestrator.actions import local_command, receipt_files, training
from orchestrator.errors import ConfigError, HostUnreachable, TrainingDisturbed
from orchestrator.keeping import state_folder
from orchestrator.model import Host, Inventory, Receipt, TrainingRun
from orchestrator.ssh.choose import Connections
from orchestrator.ssh.connection import Connection
from orchestrator.ssh.witness import Witness


class Listener(Protocol):
    """Hears what happens while it happens."""

    def watching(self, run: TrainingRun, sample: Mapping[str, object], host: str) -> None: ...
    def ended(self, exit_code: int, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """A command that has ended, and what training did meanwhile."""

    id: str
    run: str
    exit_code: int
    receipt: Receipt
    file: Path | None
    """the receipt in the state folder; None where it could not be kept"""
    not_kept: str = ""
    """why"""


def guard(
    inventory: Inventory,
    run_name: str,
    argv: Sequence[str],
    connections: Connections,
    listener: Listener,
    output: int | None,
) -> Guarded:
    """Run the command once training is watched on every host of the run.

    Where training can't be watched, nothing is started: raises what reaching the host raises, or ConfigError.
    """
    run = config.choose_run(inventory, run_name)
    if run.process is None:
        hint = f"name it as process: of run {run.name} in {inventory.path.name}"
        raise ConfigError(f"run {run.name} names no process that could be watched", hint=hint)
    state_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    hosts = [inventory.hosts[name] for name in run.hosts]
    witnesses = _watch(inventory, run, hosts, connections)
    for host, witness in zip(hosts, witnesses, strict=True):
        listener.watching(run, witness.samples[0], host.name)
    try:
        exit_code = local_command.run(argv, output=output)
    finally:
        for witness in witnesses:
            witness.dismiss()
    windows = [training.watched("command", host.name, w) for host, w in zip(hosts, witnesses, strict=True)]
    if receipts.receipt(windows).verdict == "undisturbed":
        listener.ended(exit_code, inventory.timeouts.aftermath)
        windows += _aftermath(inventory, run, hosts, connections)
    receipt = receipts.receipt(windows)
    known = Guarded(id="", run=run.name, exit_code=exit_code, receipt=receipt, file=None)
    try:
        told, file = receipt_files.keep_guarded(state_folder(), receipt, run.name, argv[0], exit_code)
    except OSError as error:  # a full disk costs neither the verdict nor the command's exit code
        return replace(known, not_kept=f"the receipt could not be kept: {error}")
    return replace(known, id=told, file=file)


def failure(guarded: Guarded) -> TrainingDisturbed | None:
    """The error that a receipt amounts to, if any."""
    if guarded.receipt.verdict != "changed":
        return None
    hint = f"orch receipt {guarded.id} shows all of it" if guarded.id else ""
    return TrainingDisturbed("; ".join(guarded.receipt.reasons), hint=hint)


def _watch(inventory: Inventory, run: TrainingRun, hosts: Sequence[Host], connections: Connections) -> list[Witness]:
    """Watch on all hosts; each has told its first sample."""

    def again(host: Host) -> Connection:
        connections.forget(host)
        return connections.to(host)

    limits = inventory.timeouts
    witnesses = [
        training.watch(partial(connections.to, host), host, run, limits, partial(again, host)) for host in hosts
    ]
    for host, witness in zip(hosts, witnesses, strict=True):
        if not witness.wait_for_first(limits.connect + 2 * limits.dead):
            for other in witnesses:
                other.dismiss()
            message = f"{host.name}: training can't be watched, so the command was not started"
            raise witness.failure or HostUnreachable(message, host=host.name)
    return witnesses


def _aftermath(
    inventory: Inventory, run: TrainingRun, hosts: Sequence[Host], connections: Connections
) -> list[training.Window]:
    """The windows after the command; Ctrl-C ends them."""
    witnesses = [training.watch(partial(connections.to, host), host, run, inventory.timeouts) for host in hosts]
    try:
        time.sleep(inventory.timeouts.aftermath)
    except KeyboardInterrupt:
        pass
    for witness in witnesses:
        witness.dismiss()
    return [training.watched("aftermath", host.name, w) for host, w in zip(hosts, witnesses, strict=True)]
