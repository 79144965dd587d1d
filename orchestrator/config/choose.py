"""Which run, job and evaluation host a command means, whether the user named them or not. Raises ConfigError."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.config.load import job_names, load_job
from orchestrator.config.messages import did_you_mean, displayed, quoted
from orchestrator.errors import ConfigError
from orchestrator.model import Host, Inventory, Job, TrainingRun


def choose_run(inventory: Inventory, name: str | None) -> TrainingRun:
    """The run of that name; without a name the only one there is."""
    if name is not None:
        return inventory.runs[_known("run", name, list(inventory.runs), inventory)]
    return inventory.runs[
        _only(
            "run",
            list(inventory.runs),
            inventory,
            "name one: orch COMMAND RUN" if inventory.runs else "add one below runs:",
        )
    ]


def choose_eval_host(inventory: Inventory, run: TrainingRun | None, flag: str | None) -> Host:
    """`--host`, else the run's eval_host, else the only host with the role eval. `run` is None where none is meant."""
    evaluators = [host for host, entry in inventory.hosts.items() if "eval" in entry.roles]
    if flag is not None:
        chosen = inventory.hosts[_known("host", flag, list(inventory.hosts), inventory)]
        if "eval" not in chosen.roles:
            raise ConfigError(
                f"host {flag!r} doesn't have the role eval",
                hint=f"Hosts that have it: {', '.join(evaluators) or 'none'}",
            )
        return chosen
    if run is not None and run.eval_host is not None:
        return inventory.hosts[run.eval_host]
    advice = f"choose one with --host, or set runs.{run.name if run else 'RUN'}.eval_host"
    return inventory.hosts[_only("host with the role eval", evaluators, inventory, advice)]


def eval_hosts(inventory: Inventory, flag: str | None = None) -> list[Host]:
    """All hosts with the role eval, or the one that `--host` names."""
    if flag is not None:
        return [choose_eval_host(inventory, None, flag)]
    return [host for host in inventory.hosts.values() if "eval" in host.roles]


def choose_job(inventory: Inventory, run: TrainingRun, flag: str | None) -> Job:
    """`--job`, else the run's job, else the only one in jobs/."""
    if flag is not None:
        return load_job(inventory, flag)
    if run.job is not None:
        try:
            return load_job(inventory, run.job)
        except ConfigError as error:
            if run.job in job_names(inventory):
                raise
            message = f"{displayed(inventory.path)}: runs.{run.name}.job: {error.message}"
            raise ConfigError(message, hint=error.hint) from None
    return load_job(inventory, only_job(inventory))


def only_job(inventory: Inventory) -> str:
    """The name of the only job in jobs/."""
    return _only("job in jobs/", job_names(inventory), inventory, "name the job, or set job: of the run")


def _known(what: str, name: str, names: Sequence[str], inventory: Inventory) -> str:
    if name not in names:
        message = f"no {what} {quoted(name)} in {displayed(inventory.path)}; {did_you_mean(name, names)}"
        add = f"add it below {what}s:"
        raise ConfigError(message, hint=f"name one of these: {', '.join(names)}; or {add}" if names else add)
    return name


def _only(what: str, names: Sequence[str], inventory: Inventory, advice: str) -> str:
    if len(names) != 1:
        listed = f"{len(names)}: {', '.join(names)}" if names else "none"
        raise ConfigError(
            f"expected one {what} in {displayed(inventory.path)}, found {listed}", hint=advice[0].upper() + advice[1:]
        )
    return names[0]
