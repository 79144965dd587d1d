"""Find and read hosts.yaml and jobs/*.yaml, and build the nouns of model.py from them.

Precedence of the inventory: --inventory, then ORCH_INVENTORY, then hosts.yaml in the current folder or the nearest
folder above it. Every refusal is a ConfigError that names file, line and YAML path.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from orchestrator.config.document import Document, displayed, quoted
from orchestrator.config.format import HOSTS_FILE, JOB_FILE
from orchestrator.config.kinds import did_you_mean
from orchestrator.config.words import DATA_PREFIX, PLACEHOLDERS, name, placeholders
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
PAYLOAD_FOLDER = "remote_payload"
INSTALLED_ROOT = Path(__file__).resolve().parents[2]
"""the folder that holds the packages orchestrator and remote_payload, in a checkout and in an installation"""
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
    document = Document(path, HOSTS_HINT)
    values = document.read(HOSTS_FILE)
    _check_hosts(document, values.get("hosts", {}))
    for run, entry in values.get("runs", {}).items():
        _check_run(document, run, entry, values.get("hosts", {}))
    _check_timeouts(document, values.get("timeouts", {}))
    document.finish()
    return Inventory(
        path=path.absolute(),
        hosts=MappingProxyType({host: _host(host, entry, path.absolute()) for host, entry in values["hosts"].items()}),
        runs=MappingProxyType({run: _run(run, entry) for run, entry in values.get("runs", {}).items()}),
        timeouts=Timeouts(**values.get("timeouts", {})),
    )


def load_job(inventory: Inventory, wanted: str) -> Job:
    """The job of a name (jobs/NAME.yaml beside the inventory) or of a path that ends in .yaml. Raises ConfigError."""
    path = _job_path(inventory, wanted)
    document = Document(path, JOB_HINT)
    values = document.read(JOB_FILE)
    _check_command(document, values)
    _check_result(document, values.get("result", {}))
    local = _harness_folder(document, values.get("harness", {}).get("local"), inventory.path.parent)
    document.finish()
    checkpoint = values.get("checkpoint", {})
    return Job(
        name=path.stem,
        path=path,
        harness_local=local,
        harness_remote=values["harness"]["remote"],
        command=values["command"],
        data=MappingProxyType(values.get("data", {})),
        ship=checkpoint.get("ship", "model"),
        model_key=checkpoint.get("model_key"),
        env=MappingProxyType({key: _env_value(value) for key, value in values.get("env", {}).items()}),
        result=ResultRule(**values.get("result", {})),
        limits=Limits(**values.get("limits", {})),
        server=values.get("server"),
    )


def job_names(inventory: Inventory) -> tuple[str, ...]:
    """Names of the jobs beside the inventory, sorted. Their files are not read."""
    return tuple(sorted(path.stem for path in (inventory.path.parent / JOBS_FOLDER).glob("*.yaml") if path.is_file()))


def _check_hosts(document: Document, hosts: Mapping[str, Any]) -> None:
    if not hosts and not document.problems:
        document.problem_at(("hosts",), "expected at least one host, found none")
    for host, entry in hosts.items():
        local = entry.get("transport") == "local"
        if "root" in entry and not local:
            document.problem_at(("hosts", host, "root"), "has a meaning only with transport: local")
        if "ssh" in entry and local:
            document.problem_at(("hosts", host, "ssh"), "has no meaning with transport: local")


def _check_run(document: Document, run: str, entry: Mapping[str, Any], hosts: Mapping[str, Any]) -> None:
    path = ("runs", run)
    for host in entry.get("host", ()):
        _check_role(document, (*path, "host"), host, "train", hosts)
    if len(set(entry.get("host", ()))) != len(entry.get("host", ())):
        document.problem_at((*path, "host"), "expected each host once")
    if "eval_host" in entry:
        _check_role(document, (*path, "eval_host"), entry["eval_host"], "eval", hosts)
    owner: dict[int, str] = {}
    for role, ranges in entry.get("gpus", {}).items():
        for gpu in (index for indices in ranges for index in indices):
            if gpu in owner:
                document.problem_at((*path, "gpus", role), f"GPU {gpu} is given twice, first to {owner[gpu]}")
                break
            owner[gpu] = role


def _check_role(document: Document, path: tuple[str, ...], host: str, role: str, hosts: Mapping[str, Any]) -> None:
    if host not in hosts:
        if ("hosts", host) not in document.lines:
            document.problem_at(path, f"no host {quoted(host)} under hosts; {did_you_mean(host, list(hosts))}")
    elif "roles" in hosts[host] and role not in hosts[host]["roles"]:
        document.problem_at(path, f"host {quoted(host)} doesn't have the role {role}")


def _check_timeouts(document: Document, timeouts: Mapping[str, float]) -> None:
    settings = Timeouts(**timeouts)
    for key in ("dead", "agent_dead"):
        if getattr(settings, key) <= settings.heartbeat:
            document.problem_at(("timeouts", key), f"expected more than the heartbeat ({settings.heartbeat:g} s)")


def _check_command(document: Document, values: Mapping[str, Any]) -> None:
    data = values.get("data", {})
    used: set[str] = set()
    for index, word in enumerate(values.get("command", ())):
        for placeholder in placeholders(word):
            used.add(placeholder)
            _check_placeholder(document, index, placeholder, data)
    if "command" in values and not used & {"checkpoint"} and not document.problems:
        document.problem_at(("command",), "expected {checkpoint} somewhere: this would evaluate no checkpoint")


def _check_placeholder(document: Document, index: int, placeholder: str, data: Mapping[str, str]) -> None:
    known = [*PLACEHOLDERS, *(DATA_PREFIX + key for key in data)]
    if placeholder in known:
        return
    if placeholder.startswith(DATA_PREFIX):
        key = placeholder[len(DATA_PREFIX) :]
        if ("data", key) not in document.lines:
            text = f"data has no {quoted(key)}; {did_you_mean(key, list(data))}"
            document.problem_at(("command", index), text)
    else:
        text = f"unknown placeholder {{{quoted(placeholder, bare=True)}}}; {did_you_mean(placeholder, known)}"
        document.problem_at(("command", index), text)


def _check_result(document: Document, result: Mapping[str, str]) -> None:
    if ("items" in result) != ("item_value" in result):
        present, absent = ("items", "item_value") if "items" in result else ("item_value", "items")
        document.problem_at(("result", absent), f"missing: {present} has no meaning without it")
    if "item_id" in result and "items" not in result:
        document.problem_at(("result", "item_id"), "has no meaning without items")


def _harness_folder(document: Document, local: str | None, beside: Path) -> Path:
    """The harness beside the inventory; for remote_payload/..., else the copy inside the installation."""
    if local is None:
        return beside
    folder = beside / Path(local).expanduser()
    if folder.is_dir():
        return folder
    if Path(local).parts[:1] == (PAYLOAD_FOLDER,) and ".." not in Path(local).parts:
        installed = INSTALLED_ROOT / local
        if installed.is_dir():
            return installed
    found = "a file" if folder.exists() else "nothing there"
    document.problem_at(("harness", "local"), f"expected a folder, found {found}: {quoted(str(folder), limit=300)}")
    return folder


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


def _host(host: str, entry: Mapping[str, Any], inventory: Path) -> Host:
    values = {key: entry[key] for key in ("transport", "python", "workdir") if key in entry}
    if "root" in entry:
        values["root"] = inventory.parent / Path(entry["root"]).expanduser()
    return Host(
        name=host,
        ssh=entry.get("ssh", host),
        roles=frozenset(entry["roles"]),
        limits=Limits(**entry.get("limits", {})),
        **values,
    )


def _run(run: str, entry: Mapping[str, Any]) -> TrainingRun:
    plain = ("checkpoints", "layout", "log", "progress", "source", "job", "eval_host")
    gpus = {
        role: tuple(index for indices in ranges for index in indices) for role, ranges in entry.get("gpus", {}).items()
    }
    return TrainingRun(
        name=run,
        hosts=entry["host"],
        process=ProcessRule(**entry["process"]) if "process" in entry else None,
        gpus=MappingProxyType(gpus),
        **{key: entry[key] for key in plain if key in entry},
    )


def _env_value(value: str | Mapping[str, Any]) -> str | ValueSource:
    return value if isinstance(value, str) else ValueSource(kind=value["from"], name=value["name"])
