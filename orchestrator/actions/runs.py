"""The verbs list, launch, follow, cancel and collect: executions of jobs on an evaluation host."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator import __version__
from orchestrator.answers import Json, entries_of, read_run
from orchestrator.model import Digests, Harness, Host, Job, Run, RunState, Timeouts
from orchestrator.ssh.agent import Conversation, ask
from orchestrator.ssh.connection import Connection

LAST_FILE = "log.tail"
"""of a run's small files: where it is, the others were kept before it"""
OURS = ("orch-result.json", "receipt.json", "launched.json")
"""files of this computer in a run's folder, which no host writes"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """What became of a run that was to be cancelled."""

    run: Run
    before: RunState
    left: tuple[int, ...]
    """processes of it that could not be ended"""


def list_runs(connection: Connection, host: Host, timeouts: Timeouts) -> tuple[Run, ...]:
    """All runs in a host's work folder, oldest first."""
    answer = ask(connection, host, "runs", {"workdir": host.workdir}, role="eval", timeouts=timeouts)
    return tuple(read_run(host.name, row) for row in answer["runs"])


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
    trains: Json,
    origin: str,
    source: Mapping[str, object] | None,
    timeouts: Timeouts,
    again: bool = False,
    taken: Collection[str] = (),
) -> Run:
    """Start the run, detached, and return it; a run with the same key that lives or succeeded is that one.

    `again` starts a new attempt although one has succeeded. `taken` are ids that its folder there shall not get.
    `beside` are the trainings of that host, which the evaluation must not disturb (Scene.beside); `trains` says what is
    looked for again right before the start (Scene.trains). `secrets` go over stdin into the waiting supervisor's
    memory; no file and no argv holds them.
    """
    limits = {
        "threads": _least(job.limits.threads, host.limits.threads),
        "memory": _least(job.limits.memory, host.limits.memory),
        "wall": _least(job.limits.wall, host.limits.wall),
        "evaluations": host.limits.evaluations,
    }
    spec = {
        "job": job.name,
        "run": training_run,
        "host": host.name,
        "step": step,
        "checkpoint": digests.checkpoint,
        "digests": asdict(digests),
        "harness": {"remote": job.harness_remote, "digest": harness.digest, "files": entries_of(harness)},
        "command": list(job.command),
        "python": host.python,
        "data": dict(job.data),
        "ship": job.ship,
        "env": dict(env),
        "limits": limits,
        "result": job.result.file,
        "rule": asdict(job.result),
        "windows": windows,
        "beside": beside,
        "trains": trains,
        "origin": origin,
        "source": source,
        "orch": __version__,
    }
    args = {
        "workdir": host.workdir,
        "key": key,
        "id": f"{step}-{key[:8]}",
        "spec": spec,
        "secrets": dict(secrets),
        "again": again,
        "taken": sorted(taken),
    }
    return read_run(host.name, ask(connection, host, "launch", args, role="eval", timeouts=timeouts)["run"])


def _least(*limits: float | None) -> float | None:
    """What a host allows, a job may only make less."""
    return min((limit for limit in limits if limit is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a run's log is read: from `place` on, else its last `lines`, else all of it or what fits one piece."""

    place: Json | None = None
    lines: int | None = None
    all: bool = False
    within: float | None = None
    """seconds after which it ends though the run goes on; 0: with what is there now; None: never"""


def follow(
    connection: Connection,
    host: Host,
    run_id: str,
    reading: Reading,
    timeouts: Timeouts,
    on_look: Callable[[Json], None],
) -> Run:
    """Follow a run to its end; each look is {state, reason, log, place, skipped, notes, progress}.

    Raises ConnectionLost: then ask again from the last place. Raises NothingToEvaluate where the run is not there.
    """
    args = {"workdir": host.workdir, "id": run_id, "poll": timeouts.poll, "for": reading.within, "all": reading.all}
    args.update({key: value for key in ("place", "lines") if (value := getattr(reading, key)) is not None})
    with Conversation(connection, host, "follow", args, role="eval", timeouts=timeouts) as conversation:
        return read_run(host.name, conversation.result(on_look)["run"])


def cancel(connection: Connection, host: Host, run_id: str, grace: float, timeouts: Timeouts) -> Cancelled:
    """End a run with all that it started, and return once nothing of it is left, or what could not be ended."""
    args = {"workdir": host.workdir, "id": run_id, "grace": grace}
    with Conversation(connection, host, "cancel", args, role="eval", timeouts=timeouts) as conversation:
        answer = conversation.result(within=2 * grace + timeouts.question)
    run = read_run(host.name, answer["run"])
    return Cancelled(run=run, before=answer["before"], left=tuple(answer["left"]))


def collect(connection: Connection, host: Host, run_id: str, timeouts: Timeouts) -> dict[str, bytes]:
    """A finished run's small files: spec.json, exit.json, the result file ..., and LAST_FILE as the last."""
    args = {"workdir": host.workdir, "id": run_id}
    answer = ask(connection, host, "collect", args, role="eval", timeouts=timeouts)
    files = {str(row["name"]): base64.b64decode(row["data"]) for row in answer["files"]}
    last = files.pop(LAST_FILE, b"")
    return {**{name: content for name, content in files.items() if name not in OURS}, LAST_FILE: last}
