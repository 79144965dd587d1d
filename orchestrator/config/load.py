"""Find and read hosts.yaml and jobs/*.yaml, and build the nouns of model.py from them.

Precedence of the inventory: --inventory, then ORCH_INVENTORY, then hosts.yaml in the current folder or the nearest
folder above it. Every refusal is a ConfigError that names file, line and YAML path.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from orchestrator.config import remembered
from orchestrator.config.messages import did_you_mean, displayed, quoted
from orchestrator.config.words import harness_folder, name
from orchestrator.errors import ConfigError
from orchestrator.model import (
    Host,
    Inventory,
    Job,
    Limits,
    ProcessRule,
    ResultRule,
    Timeouts,
    TrainingRun,
    ValueSource,
)

INVENTORY_NAME = "hosts.yaml"
INVENTORY_VARIABLE = "ORCH_INVENTORY"
JOBS_FOLDER = "jobs"
HOSTS_HINT = "Every key is in docs/hosts-yaml.md; editors can use: orch schema hosts"
JOB_HINT = "Every key is in docs/job-yaml.md; editors can use: orch schema job"


def find_inventory(flag: Path | None, environ: Mapping[str, str], cwd: Path) -> Path:
    """The path of the inventory to use. A folder stands for the hosts.yaml in it.

    Raises ConfigError that says where it looked.
    """
    for given, origin in ((flag, "--inventory"), (environ.get(INVENTORY_VARIABLE), INVENTORY_VARIABLE)):
        if not given:
            continue
        path = cwd / Path(given).expanduser()
        path = path / INVENTORY_NAME if path.is_dir() else path
        if not path.is_file():
            raise ConfigError(f"{origin}: there is no file {quoted(str(path), limit=300)}")
        return path
    for folder in (cwd, *cwd.parents):
        if (folder / INVENTORY_NAME).is_file():
            return folder / INVENTORY_NAME
    raise ConfigError(
        f"no {INVENTORY_NAME} in {displayed(cwd) if cwd != Path.cwd() else cwd} or any folder above it",
        hint=f"Go to the folder that holds it, or give --inventory FILE or {INVENTORY_VARIABLE}=FILE",
    )


def load_inventory(path: Path) -> Inventory:
    """All hosts and runs of one hosts.yaml. Raises ConfigError that lists all that is wrong with it."""
    given = remembered.settings(path, lambda: _read_hosts(path))
    path = path.absolute()
    return Inventory(
        path=path,
        hosts=MappingProxyType({name: _host(name, path.parent, **host) for name, host in given["hosts"].items()}),
        runs=MappingProxyType({name: _run(name, **run) for name, run in given.get("runs", {}).items()}),
        timeouts=Timeouts(**given.get("timeouts", {})),
        transfer=given.get("transfer", "auto"),
    )


def load_job(inventory: Inventory, wanted: str) -> Job:
    """The job of a name (jobs/NAME.yaml beside the inventory) or of a path that ends in .yaml. Raises ConfigError."""
    path = _job_path(inventory, wanted)
    folder = inventory.path.parent

    def still(given: Mapping[str, Any]) -> bool:
        return harness_folder(folder, given["harness"]["local"]) is not None

    given = remembered.settings(path, lambda: _read_job(path, folder), still)
    env = {
        key: value if isinstance(value, str) else ValueSource(**value) for key, value in given.get("env", {}).items()
    }
    return Job(
        name=path.stem,
        path=path,
        harness_local=harness_folder(folder, given["harness"]["local"]) or folder,
        harness_remote=given["harness"]["remote"],
        command=given["command"],
        data=MappingProxyType(given.get("data", {})),
        env=MappingProxyType(env),
        result=ResultRule(**given.get("result", {})),
        limits=Limits(**given.get("limits", {})),
        server=given.get("server"),
        retries=given.get("retries", 1),
        **given.get("checkpoint", {}),
    )


def job_names(inventory: Inventory) -> tuple[str, ...]:
    """Names of the jobs beside the inventory, sorted. Their files are not read."""
    return tuple(sorted(path.stem for path in (inventory.path.parent / JOBS_FOLDER).glob("*.yaml") if path.is_file()))


def _read_hosts(path: Path) -> dict[str, Any]:
    from orchestrator.config.reading import read  # with pydantic, which takes long to import
    from orchestrator.config.settings import HostsFile

    return read(path, HostsFile, HOSTS_HINT).given()


def _read_job(path: Path, folder: Path) -> dict[str, Any]:
    from orchestrator.config.reading import read
    from orchestrator.config.settings import JobFile

    return read(path, JobFile, JOB_HINT, folder=folder).given()


def _job_path(inventory: Inventory, wanted: str) -> Path:
    folder = inventory.path.parent
    if wanted.endswith((".yaml", ".yml")):
        for base in (Path.cwd(), folder):
            path = base / Path(wanted).expanduser()
            if path.is_file():
                return path
        raise ConfigError(f"there is no job file {quoted(wanted, limit=300)}", hint=_jobs_hint(inventory))
    try:
        path = folder / JOBS_FOLDER / f"{name(wanted)}.yaml"
    except ValueError as error:
        raise ConfigError(f"{quoted(wanted)} names no job: expected {error}", hint=_jobs_hint(inventory)) from None
    if not path.is_file():
        nearest = did_you_mean(wanted, job_names(inventory))
        raise ConfigError(
            f"no job {quoted(wanted)}: there is no {displayed(path)}; {nearest}", hint=_jobs_hint(inventory)
        )
    return path


def _jobs_hint(inventory: Inventory) -> str:
    names = job_names(inventory)
    return f"Jobs beside {displayed(inventory.path)}: {', '.join(names) or 'none'}"


def _host(name: str, beside: Path, /, **given: Any) -> Host:
    if "root" in given:
        given["root"] = beside / Path(given["root"]).expanduser()
    limits, roles = Limits(**given.pop("limits", {})), frozenset(given.pop("roles"))
    return Host(name=name, limits=limits, roles=roles, **{"ssh": name, **given})


def _run(name: str, /, **given: Any) -> TrainingRun:
    process = ProcessRule(**given.pop("process")) if "process" in given else None
    gpus = {role: tuple(chain.from_iterable(ranges)) for role, ranges in given.pop("gpus", {}).items()}
    return TrainingRun(name=name, hosts=given.pop("host"), process=process, gpus=MappingProxyType(gpus), **given)
