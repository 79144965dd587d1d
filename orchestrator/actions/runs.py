"""The verbs launch, follow and collect: one execution of a job on an evaluation host."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.answers import Json, entries_of, read_run
from orchestrator.model import Digests, Harness, Host, Job, Run, Timeouts
from orchestrator.ssh.agent import Conversation, ask
from orchestrator.ssh.connection import Connection


def launch(
    connection: Connection,
    host: Host,
    job: Job,
    *,
    key: str,
    training_run: str,
    step: int,
    digests: Digests,
    harness: Harness,
    env: Mapping[str, str],
    secrets: Mapping[str, str],
    windows: list[dict[str, Any]],
    beside: Json | None,
    timeouts: Timeouts,
) -> Run:
    """Start the run, detached, and return it; a run with the same key that lives or succeeded is that one.

    `beside` are the trainings of that host, which the evaluation must not disturb (Scene.beside). `secrets` go over
    stdin into the waiting supervisor's memory; no file and no argv holds them.
    """
    limits = {
        "threads": _least(job.limits.threads, host.limits.threads),
        "memory": _least(job.limits.memory, host.limits.memory),
        "wall": _least(job.limits.wall, host.limits.wall),
    }
    spec = {
        "job": job.name,
        "run": training_run,
        "host": host.name,
        "step": step,
        "checkpoint": digests.checkpoint,
        "digests": {
            "checkpoint": digests.checkpoint,
            "harness": digests.harness,
            "job": digests.job,
            "data": digests.data,
        },
        "harness": {"remote": job.harness_remote, "digest": harness.digest, "files": entries_of(harness)},
        "command": list(job.command),
        "python": host.python,
        "data": dict(job.data),
        "ship": job.ship,
        "env": dict(env),
        "limits": limits,
        "result": job.result.file,
        "windows": windows,
        "beside": beside,
    }
    args = {"workdir": host.workdir, "key": key, "id": f"{step}-{key[:8]}", "spec": spec, "secrets": dict(secrets)}
    return read_run(host.name, ask(connection, host, "launch", args, role="eval", timeouts=timeouts)["run"])


def _least(*limits: float | None) -> float | None:
    """What a host allows, a job may only make less."""
    return min((limit for limit in limits if limit is not None), default=None)


def follow(
    connection: Connection,
    host: Host,
    run_id: str,
    offset: int,
    timeouts: Timeouts,
    on_look: Callable[[Json], None],
    *,
    within: float | None = None,
) -> Run:
    """Follow a run to its end, or for `within` seconds; each look is {state, log, offset, progress}.

    Raises ConnectionLost: then ask again.
    """
    args = {"workdir": host.workdir, "id": run_id, "offset": offset, "poll": timeouts.poll, "for": within}
    with Conversation(connection, host, "follow", args, role="eval", timeouts=timeouts) as conversation:
        return read_run(host.name, conversation.result(on_look)["run"])


def collect(connection: Connection, host: Host, run_id: str, timeouts: Timeouts) -> dict[str, bytes]:
    """A finished run's small files: spec.json, exit.json, the result file ..."""
    args = {"workdir": host.workdir, "id": run_id}
    answer = ask(connection, host, "collect", args, role="eval", timeouts=timeouts)
    return {row["name"]: base64.b64decode(row["data"]) for row in answer["files"]}
