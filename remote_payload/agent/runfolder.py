"""Making a run's folder: every path resolved on this host, the harness copied file by file and checked, and the folder
renamed to its id last, so that a run folder that exists is whole."""

import hashlib
import os
import re
import shutil
import sys
from typing import Any, Dict, List, Sequence

from remote_payload.agent import launcher, manifest, scratch, staging
from remote_payload.agent.errors import AgentError
from remote_payload.agent.folder import Folder, steps
from remote_payload.agent.inflow import unwritable, write_all

SPEC, STARTED, EXIT = "spec.json", launcher.STARTED, launcher.EXIT
OWN_FILES = (
    *(SPEC, STARTED, EXIT, launcher.CANCEL, launcher.LOG, launcher.HEARTBEAT, launcher.SUPERVISOR),
    *("harness", "harness.json", "progress.jsonl"),
    *("log.tail", "orch-result.json", "receipt.json", "launched.json"),  # on the laptop, beside the result
)
_PLACEHOLDER = re.compile(r"\{\{([A-Za-z_][\w.-]*)\}\}|\{(python|checkpoint|result|data\.[^{}]+)\}")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")


def runs_folder(workdir: str) -> str:
    """Where the runs of a work folder lie."""
    return os.path.join(scratch.expand(workdir), "runs")


def folder_of(workdir: str, run_id: str) -> str:
    """The folder of one run. Raises AgentError for an id that is no name, or no run's."""
    if not _ID.fullmatch(run_id):
        raise AgentError("not the id of a run: %s" % ascii(run_id), kind="config")
    folder = os.path.join(runs_folder(workdir), run_id)
    if not os.path.isdir(folder):
        raise AgentError("no run %s under %s" % (run_id, runs_folder(workdir)), kind="nothing")
    return folder


def prepare(workdir: str, spec: Dict[str, Any], secrets: Sequence[str], bundle: str) -> "Draft":
    """A run folder beside its place, complete but for its id. Raises AgentError where something it needs is missing."""
    values = resolve(workdir, spec)
    parent = runs_folder(workdir)
    try:
        os.makedirs(parent, mode=0o700, exist_ok=True)
        scratch.sweep(parent, ".new")
        draft = Draft(scratch.create(parent, ".new"), parent, spec, values, list(secrets))
    except OSError as error:
        raise unwritable(parent, error, "no run was started") from None
    try:
        snapshot(values["harness"], spec["harness"], os.path.join(draft.path, "harness"))
        scratch.write_json(os.path.join(draft.path, "harness.json"), {"schema": 1, "files": spec["harness"]["files"]})
        with open(os.path.join(draft.path, launcher.SUPERVISOR), "w", encoding="utf-8") as file:
            file.write(launcher.supervisor_source(bundle))
        os.makedirs(os.path.dirname(os.path.join(draft.path, spec["result"])), exist_ok=True)
    except OSError as error:
        draft.discard()
        raise unwritable(parent, error, "no run was started") from None
    except AgentError:
        draft.discard()
        raise
    return draft


class Draft:
    """A run folder that has no id yet."""

    def __init__(
        self, path: str, parent: str, spec: Dict[str, Any], values: Dict[str, str], secrets: List[str]
    ) -> None:
        self.path = path
        self._parent = parent
        self._spec = spec
        self._values = values
        self._secrets = secrets

    def take(self, run_id: str, key: str, attempt: int) -> bool:
        """Rename it to its id: the lock on that id. False when somebody else has it. Raises AgentError."""
        final = os.path.join(self._parent, run_id)
        values = dict(self._values, result=os.path.join(final, self._spec["result"]))
        kept = {name: value for name, value in self._spec.items() if name not in ("harness", "command", "data")}
        kept.update(
            schema=1,
            id=run_id,
            key=key,
            attempt=attempt,
            command=[fill(word, values) for word in self._spec["command"]],
            template=self._spec["command"],
            python=values["python"],
            harness={"remote": values["harness"], "digest": self._spec["harness"]["digest"]},
            data={name[5:]: path for name, path in values.items() if name.startswith("data.")},
            env=self._spec.get("env", {}),
            secrets=self._secrets,
        )
        try:
            scratch.write_json(os.path.join(self.path, SPEC), kept)
            scratch.sync(self.path)
            os.rename(self.path, final)
        except OSError as error:
            if os.path.lexists(final):
                return False
            raise unwritable(final, error, "no run was started") from None
        return True

    def discard(self) -> None:
        """It is not needed after all."""
        shutil.rmtree(self.path, ignore_errors=True)


def resolve(workdir: str, spec: Dict[str, Any]) -> Dict[str, str]:
    """Every placeholder's value but {result}, and "harness", as absolute paths that exist on this host.

    Raises AgentError: refused for what is not there, config for a spec that contradicts itself.
    """
    steps(spec["result"])
    if spec["result"].split("/")[0] in OWN_FILES or spec["result"].startswith("."):
        raise AgentError("a result file may not be called %s" % spec["result"], kind="config")
    if manifest.digest(spec["harness"]["files"]) != spec["harness"]["digest"]:
        raise AgentError("the harness's digest is not that of its files", kind="config")
    remote = scratch.expand(spec["harness"]["remote"])
    record = staging.record_of(workdir, spec["checkpoint"])
    if record is None:
        raise AgentError("checkpoint %s is not there, or not whole" % spec["checkpoint"], kind="refused")
    checkpoint = staging.folder_of(workdir, spec["checkpoint"])
    values = {
        "harness": remote,
        "python": interpreter(spec.get("python") or ""),
        "checkpoint": os.path.join(checkpoint, record["entry"]) if record.get("entry") else checkpoint,
    }
    for name, path in spec.get("data", {}).items():
        values["data." + name] = data_path(path, remote)
        if not os.path.exists(values["data." + name]):
            raise AgentError("data %s: %s is not there" % (name, values["data." + name]), kind="refused")
    return values


def data_path(path: str, remote: str) -> str:
    """A data path of the job as an absolute one: relative ones start at the harness's remote folder."""
    return os.path.normpath(os.path.join(scratch.expand(remote), os.path.expanduser(path)))


def interpreter(python: str) -> str:
    """The evaluation's python as an absolute path; "" means the one that runs this. Raises AgentError."""
    if not python:
        return sys.executable
    place = scratch.expand(python) if "/" in python else shutil.which(python)
    if not place or not os.access(place, os.X_OK) or os.path.isdir(place):
        raise AgentError("no python at %s" % python, "name one as `python:` of this host in hosts.yaml", kind="refused")
    return place


def fill(word: str, values: Dict[str, str]) -> str:
    """One word of the command with its placeholders filled in, and `{{name}}` as `{name}`.

    Raises AgentError for a data name that is not there.
    """

    def value(match: "re.Match[str]") -> str:
        name = match.group(2)
        if name is None:
            return "{%s}" % match.group(1)
        if name not in values:
            raise AgentError("the command names {%s}, which the job does not define" % name, kind="config")
        return values[name]

    return _PLACEHOLDER.sub(value, word)


def snapshot(remote: str, harness: Dict[str, Any], target: str) -> None:
    """Copy exactly the manifest's files out of the harness folder, each checked. Raises AgentError, OSError."""
    if not os.path.isdir(remote):
        raise AgentError("%s: no harness there" % remote, "run: orch sync-harness", kind="refused")
    source = Folder(remote)
    os.mkdir(target, 0o700)
    for entry in harness["files"]:
        place = os.path.join(manifest.to_bytes(target), *steps(entry["path"]))
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if _copy(source, entry["path"], place, entry["mode"]) != entry["sha256"]:
            raise AgentError(
                "%s is not the version that was planned" % os.path.join(remote, entry["path"]),
                "somebody edited it meanwhile; run the command again",
                kind="refused",
            )


def _copy(source: Folder, path: str, place: bytes, mode: int) -> str:
    try:
        descriptor = source.open(path)
    except OSError:
        return ""  # gone, or no longer a file: not the planned version either
    digest = hashlib.sha256()
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        copy = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while True:
                data = file.read(1 << 20)
                if not data:
                    break
                digest.update(data)
                write_all(copy, memoryview(data))
            os.fchmod(copy, 0o755 if mode & 0o100 else 0o644)
        finally:
            os.close(copy)
    return digest.hexdigest()
