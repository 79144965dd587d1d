"""The verb preflight: try on the evaluation host what an evaluation will need, and judge what it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator import needs
from orchestrator.amounts import memory as in_memory
from orchestrator.amounts import size
from orchestrator.answers import Json, entries_of
from orchestrator.model import Check, Harness, Host, Job, Scan, Timeouts, ValueSource
from orchestrator.needs import Needs
from orchestrator.ssh.agent import ask
from orchestrator.ssh.connection import Connection
from orchestrator.taken import local_text
from remote_payload.agent import wire

LIMIT = 64 * 2**20
"""bytes of a harness that is tried before it is synced"""


def read_needs(job: Job, ours: Harness) -> Needs:
    """What the local harness needs, from its sources."""
    sources = {file.path: local_text(job.harness_local, file.path) for file in ours.files if file.path.endswith(".py")}
    return needs.needs_of(job, sources)


def tensors_of(scan: Scan | None) -> Json | None:
    """What the latest checkpoint holds, for the harness's own check; None where that can't be listed."""
    told = scan.tensors if scan is not None else None
    return told if isinstance(told, Mapping) and not told.get("refused") else None


def try_out(
    connection: Connection,
    host: Host,
    job: Job,
    ours: Harness,
    wanted: Needs,
    tensors: Json | None,
    timeouts: Timeouts,
    *,
    synced: bool,
) -> Json:
    """The host's answer: one exec. With `synced`, only what costs little, with the harness that lies there."""
    plain = {name: value for name, value in job.env.items() if not isinstance(value, ValueSource)}
    args = {
        "workdir": host.workdir,
        "remote": job.harness_remote,
        "entries": entries_of(ours),
        "synced": synced,
        "command": list(job.command),
        "python": host.python,
        "data": dict(job.data),
        "env": plain,
        "threads": job.limits.threads or host.limits.threads,
        "imports": list(wanted.packages),
        "only_look": synced,
        "help": bool(wanted.script and wanted.answers_help and not synced),
        "tensors": None if tensors is None else {"tensors": tensors["tensors"], "config": tensors["config"]},
        "server": job.server,
    }
    pieces = None if synced else _pieces(job, ours)
    return ask(connection, host, "preflight", args, role="eval", timeouts=timeouts, pieces=pieces)


def _pieces(job: Job, ours: Harness) -> Iterator[bytes] | None:
    if not any(file.size for file in ours.files):
        return None
    return (
        data[at : at + wire.CHUNK]
        for file in ours.files
        for data in [local_text(job.harness_local, file.path)[: file.size]]  # fewer where one changed: the host counts
        for at in range(0, len(data), wire.CHUNK)
    )


def judge(host: Host, job: Job, wanted: Needs, answer: Json) -> Iterator[Check]:
    """What an evaluation host's answer means, in the order in which an evaluation would meet it."""
    if wanted.missing:
        yield _check("program", False, wanted.missing, f"correct `command:` in {job.path.name}, or `harness.local:`")
    yield _python(host, answer["python"])
    yield from _imports(host, wanted, answer["imports"])
    yield _options(job, wanted, answer["help"])
    for name, row in answer["data"].items():
        there = bool(row["exists"])
        hint = "" if there else f"make it there, or change data.{name} in {job.path.name}"
        yield _check(f"data.{name}", there, str(row["path"]) + ("" if there else " is not there"), hint)
    if answer["server"] is not None:
        server = answer["server"]
        hint = f"start it, or change `server:` in {job.path.name}"
        yield _check("server", bool(server["ok"]), f"{server['url']}: {server['detail']}", hint)
    yield _memory(host, job, answer["memory"])
    yield _folder(host, job, answer)


def _check(name: str, good: bool, detail: str, hint: str = "") -> Check:
    return Check(name=name, state="ok" if good else "fail", detail=detail, hint="" if good else hint)


def _python(host: Host, row: Json) -> Check:
    detail = f"{row['path']} {row['version'] or ''}".strip() if row["ok"] else str(row["detail"])
    return _check("python", bool(row["ok"]), detail, f"name another `python:` of host {host.name} in hosts.yaml")


def _imports(host: Host, wanted: Needs, rows: Any) -> Iterator[Check]:
    if not wanted.script:
        yield Check(name="imports", state="skipped", detail="the command is not {python} and a file of the harness")
    elif isinstance(rows, Mapping):
        yield _check("imports", False, str(rows.get("error")), f"{host.python} on {host.name} may be broken")
    for row in rows if isinstance(rows, list) else ():
        detail = str(row["version"] or "there") if row["ok"] else str(row["detail"])
        if not row["ok"] and wanted.changes_path:
            detail += "; but the program changes sys.path itself"
            yield Check(name=f"import {row['name']}", state="skipped", detail=detail)
            continue
        yield _check(f"import {row['name']}", bool(row["ok"]), detail, f"install it for {host.python} on {host.name}")


def _options(job: Job, wanted: Needs, told: Any) -> Check:
    if not isinstance(told, Mapping):
        detail = "its program parses no options by a library that is known" if wanted.script else "no program to ask"
        return Check(name="options", state="skipped", detail=detail)
    if "error" in told or told["exit"] != 0:
        said = told.get("error") or f"exit {told['exit']}: {str(told['text']).strip()[-400:]}"
        return _check("options", False, f"{wanted.script} --help: {said}", "run it by hand on that host")
    unknown = needs.unknown_options(wanted.options, str(told["text"]))
    detail = f"{wanted.script} does not know {', '.join(unknown)}" if unknown else " ".join(wanted.options)
    return _check("options", not unknown, detail or "none", f"correct `command:` in {job.path.name}")


def tensors_check(job: Job, scan: Scan | None, answer: Json) -> Check:
    """Whether the checkpoint fits what the harness expects."""
    told = scan.tensors if scan is not None else None
    if job.ship == "whole" or scan is None or scan.latest is None or not isinstance(told, Mapping):
        why = "the file goes as it is" if job.ship == "whole" else "there is no checkpoint to look into"
        return Check(name="tensors", state="skipped", detail=why)
    if told.get("refused"):
        hint = str(told.get("hint") or f"name `model_key` or `ship: whole` in {job.path.name}")
        return _check("tensors", False, f"step {scan.latest.step}: {told['refused']}", hint)
    verdict = answer["tensors"]
    if not isinstance(verdict, Mapping):
        return Check(name="tensors", state="skipped", detail="the harness has no check_tensors.py to ask")
    if "error" in verdict:
        return _check("tensors", False, str(verdict["error"]), "run check_tensors.py by hand")
    detail = f"step {scan.latest.step}: {verdict['detail']}"
    hint = f"correct --config in {job.path.name}, or evaluate another run"
    return _check("tensors", bool(verdict["ok"]), detail, hint)


def _memory(host: Host, job: Job, memory: Json) -> Check:
    asked = min((limit for limit in (job.limits.memory, host.limits.memory) if limit is not None), default=None)
    available = int(memory["available"])
    if asked is None:
        return Check(name="memory", state="ok", detail=f"{in_memory(available)} available; the job asks for none")
    hint = "wait, name another host with --host, or lower limits.memory"
    return _check("memory", available >= asked, f"{in_memory(available)} available, {in_memory(asked)} asked for", hint)


def disk_check(host: Host, disk: Json, needed: int) -> Check:
    """Whether the weights will have room."""
    free = int(disk["free"])
    detail = f"{size(free)} free below {host.workdir}, {size(needed)} needed"
    return _check("disk", free >= needed, detail, f"orch clean --host {host.name}, or name another workdir")


def _folder(host: Host, job: Job, answer: Json) -> Check:
    if answer["writable"]:
        return _check("work folder", False, str(answer["writable"]), f"name another `workdir:` of host {host.name}")
    runs_file = job.command[0] != "{python}" and "/" in job.command[0] and not job.command[0].startswith("/")
    detail = f"{host.workdir} is on a file system without execution (noexec)" if answer["noexec"] else host.workdir
    hint = f"name another `workdir:` of host {host.name}, or start {job.command[0]} by its interpreter"
    return _check("work folder", not (answer["noexec"] and runs_file), detail, hint)
