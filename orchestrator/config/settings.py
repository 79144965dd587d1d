"""The keys of hosts.yaml, jobs/*.yaml and the user's own config.yaml: the one definition, for reading and for editors.

A `title` says what a value must be and a `description` what a key means; refusals say the same. The context of a
validation is the whole file as document.py read it: a check that looks at another place takes that from there, so that
it works beside other things that are wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, WrapValidator, field_validator, model_validator
from pydantic_core import PydanticKnownError

from orchestrator.config import kinds
from orchestrator.config.kinds import Count, Duration, Name, OneOrMore, Pathname, Text, refuse
from orchestrator.config.messages import did_you_mean, quoted
from orchestrator.config.words import DATA_PREFIX, PLACEHOLDERS, harness_folder, placeholders
from orchestrator.model import Role, Timeouts, TransferName, TransportName

TRANSFER = "Which way checkpoints go: direct (box to box), tunnel, relay (over this computer); auto picks."
ROOM_FOR_ANCHORS = {"patternProperties": {"^x-": True}}


def required(description: str, title: str | None = None) -> Any:
    """A key that must be there."""
    return Field(description=description, title=title)


def optional(description: str, title: str | None = None) -> Any:
    """A key that may be left out."""
    return Field(None, description=description, title=title)


def context(info: ValidationInfo, key: str) -> Any:
    """What reading.py knows besides the value."""
    return (info.context or {})[key]


class Settings(BaseModel):
    """Base of all: keys that aren't known are refused, and what isn't needed isn't built."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True, protected_namespaces=())

    def given(self) -> dict[str, Any]:
        """What the file holds, without the keys that it leaves out."""
        return self.model_dump(exclude_unset=True)


class LimitSettings(Settings, title="a mapping of limits"):
    threads: Count | None = optional("The most CPU threads that an evaluation uses.")
    memory: kinds.Size | None = optional("The most memory that an evaluation uses, such as 60GiB.")
    wall: Duration | None = optional("The longest that an evaluation may run, such as 6h.")


class HostLimitSettings(LimitSettings, title="a mapping of limits"):
    evaluations: Count | None = optional("How many evaluations may run there at once; others wait. Default: 1.")


class HostSettings(Settings, title="a mapping such as {roles: [train]}"):
    ssh: kinds.Target | None = optional("Alias from ~/.ssh/config, or user@host[:port]. Default: the host's name.")
    roles: OneOrMore[Role] = required(
        "What orch does there: train (look, never write) or eval (run evaluations); or both.",
        title="a list of train and eval",
    )
    transport: TransportName | None = optional("How to get there. auto picks; local makes this machine a host.")
    python: Pathname | None = optional("Runs orch's questions, and is {python} in commands. Default: python3.")
    workdir: kinds.RemoteFolder | None = optional("Where orch keeps its files on an evaluation host. Default: ~/orch.")
    root: Pathname | None = optional("Only with transport: local. The folder here that stands for the host's home.")
    limits: HostLimitSettings | None = optional("What every evaluation on this host may use; a job may ask for less.")
    one_use_keys: kinds.Switch | None = optional(
        "no: a shipment never touches this user's authorized_keys, and goes through this computer. Default: yes."
    )
    keep_free: kinds.Size | None = optional("What a shipment leaves free on this host's disk, such as 10GiB.")
    keep_staged: Count | None = optional(
        "How many checkpoints orch watch leaves on this host of those that it has evaluated, the newest. Default: all."
    )

    @model_validator(mode="after")
    def _fits_its_transport(self) -> HostSettings:
        if self.root is not None and self.transport != "local":
            refuse(("has a meaning only with transport: local", ("root",)))
        if self.ssh is not None and self.transport == "local":
            refuse(("has no meaning with transport: local", ("ssh",)))
        return self


class ProcessSettings(
    Settings,
    title="exactly one of match, pid and pidfile",
    json_schema_extra={"minProperties": 1, "maxProperties": 1},
):
    match: Text | None = optional("Part of the training process's command line.")
    pid: Count | None = optional("Its process id.")
    pidfile: Pathname | None = optional("A file on the host that holds its process id.")

    @model_validator(mode="after")
    def _is_one(self) -> ProcessSettings:
        given = sorted(self.model_fields_set)
        if len(given) != 1:
            refuse((f"expected {self.model_config['title']}, found {' and '.join(given) or 'none'}", ()))
        return self


class RunSettings(Settings, title="a mapping such as {host: ct200, checkpoints: /workspace/checkpoints}"):
    host: OneOrMore[Name] = required(
        "The host that trains, or a list of hosts; the first holds the checkpoints.",
        title="the name of a host, or a list of them",
    )
    checkpoints: Pathname = required("The folder on the first host that receives the checkpoints.")
    layout: kinds.Layout | None = optional("A layout's name, or a pattern like step_{step}/x.pt. Default: recognised.")
    process: ProcessSettings | None = optional("How to recognise the training process: one of match, pid, pidfile.")
    log: Pathname | None = optional("The training's log file, from which its progress is read.")
    progress: kinds.Progress | None = optional(
        "A preset's name, or a regular expression with named groups step, epoch, loss, rate, unit."
    )
    source: Pathname | None = optional("The folder of the training's source; its git state is recorded.")
    job: Name | None = optional("The job that evaluates this run by default: jobs/NAME.yaml.")
    eval_host: Name | None = optional("The host that evaluates this run by default; it has the role eval.")
    gpus: dict[Name, kinds.GpuRanges] | None = optional(
        "What the training's GPUs do: a role's name and its GPU numbers. Groups them in status.",
        title="a mapping such as {target: 0-4, drafter: 5-7}",
    )
    transfer: TransferName | None = optional(TRANSFER)
    limit_rate: kinds.Size | None = optional("Bytes a second that leave the training box at most, such as 50MB.")

    @field_validator("host", "eval_host")
    @classmethod
    def _has_the_role(cls, value: str | tuple[str, ...], info: ValidationInfo) -> str | tuple[str, ...]:
        names, role = ((value,), "eval") if isinstance(value, str) else (value, "train")
        texts = [_unfit(name, role, context(info, "file").get("hosts")) for name in names]
        refuse(*((text, (index,)) for index, text in enumerate(texts) if text))
        if len(set(names)) != len(names):
            refuse(("expected each host once", ()))
        return value

    @field_validator("gpus")
    @classmethod
    def _have_one_role_each(cls, gpus: dict[str, tuple[tuple[int, ...], ...]]) -> Mapping[str, Any]:
        owner: dict[int, str] = {}
        for role, ranges in gpus.items():
            for gpu in (index for indices in ranges for index in indices):
                if gpu in owner:
                    refuse((f"GPU {gpu} is given twice, first to {owner[gpu]}", (role,)))
                owner[gpu] = role
        return gpus


def _unfit(name: str, role: str, hosts: Any) -> str:
    """Why a host can't be meant. One that is there, but wrong itself, is not told a second time."""
    if not isinstance(hosts, dict):
        return ""
    if name not in hosts:
        return f"no host {quoted(name)} under hosts; {did_you_mean(name, hosts)}"
    roles = kinds.or_one(hosts[name].get("roles")) if isinstance(hosts[name], dict) else ()
    right = isinstance(roles, tuple) and all(known in get_args(Role) for known in roles)
    return f"host {quoted(name)} doesn't have the role {role}" if right and roles and role not in roles else ""


class TimeoutSettings(Settings, title="a mapping such as {connect: 10s}"):
    connect: Duration | None = optional("Until a host has answered and let us in. Default: 10s.")
    heartbeat: Duration | None = optional("Between two signs of life, in both directions. Default: 3s.")
    dead: Duration | None = optional("Silence after which a connection is taken to be dead. Default: 15s.")
    agent_dead: Duration | None = optional("Silence after which orch's process on a host ends itself. Default: 20s.")
    question: Duration | None = optional("The longest that one question to a host may take. Default: 120s.")
    poll: Duration | None = optional("Between two looks at a running evaluation. Default: 1s.")
    sample: Duration | None = optional("Between two samples of a training that is watched. Default: 10s.")
    watch: Duration | None = optional("Between two looks of orch watch at the training box. Default: 60s.")
    aftermath: Duration | None = optional("For which `guard` watches training after the command. Default: 60s.")

    @model_validator(mode="after")
    def _outlast_the_heartbeat(self) -> TimeoutSettings:
        times = Timeouts(**self.given())
        text = f"expected more than the heartbeat ({times.heartbeat:g} s)"
        refuse(*((text, (key,)) for key in ("dead", "agent_dead") if getattr(times, key) <= times.heartbeat))
        return self


class HostsFile(Settings, title="a mapping with the keys hosts and runs", json_schema_extra=ROOM_FOR_ANCHORS):
    """Machines and training runs."""

    hosts: dict[Name, HostSettings] = required(
        "The machines, by name. The name is an ssh alias unless ssh: says otherwise.",
        title="a mapping of host names",
    )
    runs: dict[Name, RunSettings] | None = optional("The training runs, by name.", title="a mapping of run names")
    timeouts: TimeoutSettings | None = optional("Time limits of connections and questions.")
    transfer: TransferName | None = optional(f"{TRANSFER} For runs that don't say.")

    @field_validator("hosts")
    @classmethod
    def _are_some(cls, hosts: dict[str, HostSettings]) -> dict[str, HostSettings]:
        if not hosts:
            refuse(("expected at least one host, found none", ()))
        return hosts


class HarnessSettings(Settings, title="a mapping such as {local: harness, remote: /root/eval}"):
    local: Pathname = required("The folder with the evaluation scripts, relative to that of hosts.yaml.")
    remote: kinds.RemoteFolder = required("The folder on the evaluation host that is kept equal to it.")

    @field_validator("local")
    @classmethod
    def _is_a_folder(cls, local: str, info: ValidationInfo) -> str:
        if harness_folder(context(info, "folder"), local) is None:
            beside = context(info, "folder") / Path(local).expanduser()
            found = "a file" if beside.exists() else "nothing there"
            refuse((f"expected a folder, found {found}: {quoted(str(beside), limit=300)}", ()))
        return local


class CheckpointSettings(Settings, title="a mapping such as {ship: model}"):
    ship: Literal["model", "whole"] | None = optional(
        "model: the weights alone, as safetensors. whole: the file as it is."
    )
    model_key: Text | None = optional("The key in the checkpoint that holds the model, where it isn't found by itself.")


class SourceSettings(Settings, title="a mapping such as {from: env, name: HF_TOKEN}"):
    kind: Literal["env", "file", "command"] = Field(
        alias="from",
        description="Where this computer finds the value: an environment variable, a file, or a command of your own.",
    )
    name: Text = required("The variable, the file, or the command's name in your own config.yaml.")


def _text_or_source(value: object, _: object) -> str | SourceSettings:
    if isinstance(value, dict):
        return SourceSettings.model_validate(value)
    if isinstance(value, str):
        return value
    raise PydanticKnownError("string_type")


EnvValue = Annotated[
    kinds.EnvText | SourceSettings, WrapValidator(_text_or_source), Field(title="a value, or {from: env, name: ...}")
]


class ResultSettings(Settings, title="a mapping such as {file: eval_results.json}"):
    file: kinds.ResultFile | None = optional("The JSON file that the evaluation writes. Default: eval_results.json.")
    headline: Text | None = optional("The number that counts: its dotted path in the file.")
    better: Literal["higher", "lower"] | None = optional("Which way is better. Default: higher.")
    items: Text | None = optional("Dotted path of the list of measured items, from which intervals are computed.")
    item_id: Text | None = optional("The key of an item that names it. Default: id.")
    item_value: Text | None = optional("Dotted path of an item's value.")

    @model_validator(mode="after")
    def _items_have_values(self) -> ResultSettings:
        for here, there in (("items", "item_value"), ("item_value", "items")):
            if getattr(self, here) is not None and getattr(self, there) is None:
                refuse((f"missing: {here} has no meaning without it", (there,)))
        if self.item_id is not None and self.items is None:
            refuse(("has no meaning without items", ("item_id",)))
        return self


class JobFile(Settings, title="a mapping with the keys harness and command", json_schema_extra=ROOM_FOR_ANCHORS):
    """A recipe for evaluating a checkpoint."""

    harness: HarnessSettings = required(
        "The evaluation scripts: where they are here, and where they belong on the evaluation host."
    )
    command: kinds.Several[Text] = required(
        "Program and arguments, with {python}, {checkpoint}, {result} and {data.NAME} filled in.",
        title='a list such as ["{python}", eval.py, "{checkpoint}"]',
    )
    data: dict[Name, Pathname] | None = optional(
        "What the evaluation reads on the evaluation host: never copied; its digest goes into the result.",
        title="a mapping of names to paths",
    )
    checkpoint: CheckpointSettings | None = optional("What of a checkpoint is copied.")
    env: dict[kinds.Variable, EnvValue] | None = optional(
        "The evaluation's environment. A secret is named with {from: ..., name: ...}, never written here.",
        title="a mapping of environment variables",
    )
    result: ResultSettings | None = optional("What the evaluation writes and how to read it.")
    limits: LimitSettings | None = optional("What this evaluation may use.")
    retries: kinds.Number | None = optional("How often orch watch tries a failed evaluation again. Default: 1.")
    server: kinds.Server | None = optional(
        "A server that the evaluation needs, as the evaluation host sees it; checked before the start."
    )

    @field_validator("command")
    @classmethod
    def _can_be_filled(cls, command: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        data = context(info, "file").get("data")
        names = list(data) if isinstance(data, dict) else []
        used = [(name, index) for index, word in enumerate(command) for name in placeholders(word)]
        refuse(*((text, (index,)) for name, index in used if (text := _unfilled(name, names))))
        if "checkpoint" not in dict(used):
            refuse(("expected {checkpoint} somewhere: this would evaluate no checkpoint", ()))
        return command


def _unfilled(placeholder: str, data: list[str]) -> str:
    known = [*PLACEHOLDERS, *(DATA_PREFIX + key for key in data)]
    if placeholder in known:
        return ""
    if placeholder.startswith(DATA_PREFIX):
        key = placeholder.removeprefix(DATA_PREFIX)
        return f"data has no {quoted(key)}; {did_you_mean(key, data)}"
    return f"unknown placeholder {{{quoted(placeholder, bare=True)}}}; {did_you_mean(placeholder, known)}"


class HookSettings(Settings, title="a mapping such as {result: [program, argument]}"):
    result: kinds.Argv | None = optional(
        "Program and arguments, run without a shell after each result with its document on stdin."
    )
    timeout: Duration | None = optional("The longest that a hook may run. Default: 30s.")


class UserFile(Settings, title="a mapping with keys such as commands", json_schema_extra=ROOM_FOR_ANCHORS):
    """The user's own settings on this computer."""

    commands: dict[Name, kinds.Argv] | None = optional(
        "Commands of this computer that jobs may name with {from: command, name: ...}.",
        title="a mapping of names to commands",
    )
    hooks: HookSettings | None = optional("Commands of this computer that orch runs by itself.")
    tensorboard: Pathname | None = optional(
        "The folder that receives TensorBoard event files: an absolute path or ~/... Needs the extra `tensorboard`."
    )

    @field_validator("tensorboard")
    @classmethod
    def _is_a_place(cls, folder: str | None) -> str | None:
        if folder is not None and not Path(folder).expanduser().is_absolute():
            refuse((f"expected an absolute path or ~/..., found {quoted(folder)}", ()))
        return folder
