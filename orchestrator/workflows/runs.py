"""The stories of `orch runs` and `orch cancel`, and which run a word on the command line means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator import config
from orchestrator.actions import launched, runs
from orchestrator.actions.runs import Cancelled
from orchestrator.errors import ConfigError, OrchError
from orchestrator.keeping import state_folder
from orchestrator.model import Host, Inventory, Run
from orchestrator.ssh.choose import Connections
from orchestrator.ssh.fleet import Outcome, on_each

LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsReport:
    """The runs of the hosts that could be reached, host by host and oldest first, and why others could not."""

    runs: tuple[Run, ...]
    hosts: tuple[Outcome[Host, tuple[Run, ...]], ...]

    @property
    def unreachable(self) -> tuple[OrchError, ...]:
        """Why hosts gave no answer."""
        return tuple(outcome.error for outcome in self.hosts if outcome.error is not None)


def list_runs(
    inventory: Inventory, host_name: str | None, connections: Connections, *, of: str | None = None
) -> RunsReport:
    """Look at one evaluation host, or all of them at once; with `of`, only for evaluations of that training run."""
    training = config.choose_run(inventory, of).name if of is not None else None
    hosts = config.eval_hosts(inventory, host_name)

    def wanted(host: Host) -> tuple[Run, ...]:
        return tuple(run for run in _runs_of(host, inventory, connections) if training in (None, run.run))

    outcomes = on_each(hosts, wanted)
    found = tuple(run for outcome in outcomes for run in outcome.value or ())
    return RunsReport(runs=found, hosts=tuple(outcomes))


def _runs_of(host: Host, inventory: Inventory, connections: Connections) -> tuple[Run, ...]:
    """What lies there, after what lay there once, as this computer remembers it."""
    there = runs.list_runs(connections.to(host), host, inventory.timeouts)
    known = {run.id for run in there}
    lost = (run for run in launched.remembered(state_folder(), host.name) if run.id not in known)
    return (*lost, *there)


def find_run(inventory: Inventory, word: str, host_name: str | None, connections: Connections) -> Run:
    """The run that `word` means: an id, the beginning of one that no other run shares, or `latest`.

    Raises ConfigError that lists what it could mean; HostUnreachable where it may be on a host that does not answer.
    """
    report = list_runs(inventory, host_name, connections)
    found = _latest(report) if word == LATEST else _matching(report.runs, word)
    if len(found) == 1:
        return found[0]
    if not found and report.unreachable:
        raise report.unreachable[0]
    if not found:
        where = ", ".join(outcome.host.name for outcome in report.hosts) or "no host"
        what = "no run yet" if word == LATEST else f"no run {word!r}"
        raise ConfigError(f"{what} on {where}", hint="orch runs lists them all")
    listed = ", ".join(f"{run.id} on {run.host}" for run in found[:10])
    raise ConfigError(f"{word!r} may be any of {len(found)} runs: {listed}", hint="give more of the id, or --host")


def _matching(rows: Sequence[Run], word: str) -> list[Run]:
    exact = [run for run in rows if run.id == word]
    return exact or [run for run in rows if run.id.startswith(word)]


def _latest(report: RunsReport) -> list[Run]:
    """The last run of each host; of several, the one that this computer started or joined last.

    Clocks of different hosts are never compared.
    """
    last = [outcome.value[-1] for outcome in report.hosts if outcome.value]
    if len(last) < 2:
        return last
    state = state_folder()
    latest = max(report.runs, key=lambda run: launched.when(state, run))
    return [latest] if launched.when(state, latest) else last


def cancel(inventory: Inventory, word: str, host_name: str | None, grace: float, connections: Connections) -> Cancelled:
    """End the run that `word` means, and whatever of it still runs."""
    run = find_run(inventory, word, host_name, connections)
    host = inventory.hosts[run.host]
    if not run.folder:
        return Cancelled(run=run, before=run.state, left=())
    return runs.cancel(connections.to(host), host, run.id, grace, inventory.timeouts)
