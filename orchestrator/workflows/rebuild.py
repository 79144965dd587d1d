"""The story of `orch ledger rebuild`: what was brought home, what still lies on the hosts, and an index over both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator import config, receipts, records
from orchestrator.actions import runs
from orchestrator.actions.ledger import Ledger, set_aside
from orchestrator.answers import Json
from orchestrator.errors import ConfigError, HostUnreachable, OrchError, Refused
from orchestrator.keeping import state_folder
from orchestrator.model import Entry, Host, Inventory, Result, ResultRule
from orchestrator.ssh.choose import Connections
from orchestrator.ssh.fleet import on_each
from orchestrator.workflows import reading

FINISHED = ("succeeded", "failed", "cancelled", "refused")


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildReport:
    """What the new index holds and where it came from."""

    results: int
    collected: tuple[tuple[str, str], ...]
    """(host, run id) of runs that were brought home now"""
    unreachable: tuple[OrchError, ...]
    warnings: tuple[str, ...]


def rebuild(inventory: Inventory | None, connections: Connections | None) -> RebuildReport:
    """Make the index anew. Without an inventory only from what was brought home; dead hosts are warnings.

    Raises Refused for a run folder or an index that a newer orch wrote: nothing is changed then.
    """
    warnings: list[str] = []
    with _opened(warnings) as ledger:
        collected: list[tuple[str, str]] = []
        unreachable: list[OrchError] = []
        if inventory is not None and connections is not None:
            collected, unreachable, missed = _bring_home(inventory, connections, ledger)
            warnings += missed
        entries = [entry for folder in ledger.run_folders() for entry in _entry(folder, inventory, ledger, warnings)]
        ledger.replace_all(entries)
    return RebuildReport(
        results=len(entries), collected=tuple(collected), unreachable=tuple(unreachable), warnings=tuple(warnings)
    )


def _opened(warnings: list[str]) -> Ledger:
    """The ledger, with a fresh index where the old one can't be read."""
    try:
        with Ledger.at_home() as ledger:
            ledger.check()
        return Ledger.at_home()
    except Refused:
        raise
    except OrchError as error:
        aside = set_aside(state_folder())
        if aside is None:
            raise
        warnings.append(f"{error.message}; it is kept as {aside.name}")
        return Ledger.at_home()


# -- from the hosts ------------------------------------------------------------------------------------------------


def _bring_home(
    inventory: Inventory, connections: Connections, ledger: Ledger
) -> tuple[list[tuple[str, str]], list[OrchError], list[str]]:
    """Copy the small files of finished runs that are not here yet, from all evaluation hosts at once."""
    collected: list[tuple[str, str]] = []
    unreachable: list[OrchError] = []
    missed: list[str] = []

    def one(host: Host) -> tuple[list[str], list[str]]:
        return _from_host(host, connections, ledger, inventory)

    for outcome in on_each(config.eval_hosts(inventory), one):
        if outcome.value is None:
            assert outcome.error is not None
            unreachable.append(outcome.error)
            missed.append(f"{outcome.error.message}; what lies there alone is not in the ledger")
        else:
            collected += [(outcome.host.name, run_id) for run_id in outcome.value[0]]
            missed += outcome.value[1]
    return collected, unreachable, missed


def _from_host(
    host: Host, connections: Connections, ledger: Ledger, inventory: Inventory
) -> tuple[list[str], list[str]]:
    """(ids brought home, what could not be)."""
    connection = connections.to(host)
    brought, missed = [], []
    for run in runs.list_runs(connection, host, inventory.timeouts):
        try:
            if run.state in FINISHED and not (ledger.folder_of(host.name, run.id) / runs.LAST_FILE).exists():
                ledger.keep_files(host.name, run.id, runs.collect(connection, host, run.id, inventory.timeouts))
                brought.append(run.id)
        except HostUnreachable:
            raise
        except OrchError as error:
            missed.append(f"{host.name}: run {run.id}: {error.message}")
    return brought, missed


# -- from the folders ----------------------------------------------------------------------------------------------


def _entry(folder: Path, inventory: Inventory | None, ledger: Ledger, warnings: list[str]) -> Sequence[Entry]:
    """The line of one run folder; none for a run without a result, with a warning where it should have one."""
    read = reading.files_in(folder)
    try:
        if (folder / records.FILE).exists():
            return (records.entry_of(records.read(folder)),)
        spec = reading.spec_of(read)
        if spec is None or not reading.has_succeeded(read):
            return ()
        result = _first_reading(folder, read, spec, inventory)
    except Refused as error:
        raise Refused(f"{folder}: {error.message}", hint=error.hint) from None
    except (OrchError, OSError) as error:
        warnings.append(f"{folder}: {error}")
        return ()
    ledger.add(result)
    return (records.entry_of(result),)


def _first_reading(folder: Path, read: reading.Read, spec: Json, inventory: Inventory | None) -> Result:
    """The result of a run that nobody has read yet; its receipt is over the windows until its start."""
    receipt = receipts.brief(receipts.receipt(reading.windows_of(spec)))
    return reading.result_of(read, folder.parent.name, folder, receipt, _rule(str(spec.get("job")), inventory))


def _rule(job: str, inventory: Inventory | None) -> ResultRule | None:
    """The rule of the job of that name, for runs of early versions."""
    if inventory is None or job not in config.job_names(inventory):
        return None
    try:
        return config.load_job(inventory, job).result
    except ConfigError:
        return None
