"""One question to a box, and the reading of its answer: what the training box and the evaluation box look like now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.actions.torn import Torn, below
from orchestrator.answers import Json, entries_of, read_harness, read_run, read_scan
from orchestrator.errors import OrchError
from orchestrator.model import Harness, HarnessFacts, Host, Job, Role, Run, Scan, Timeouts, TrainingRun
from orchestrator.ssh.agent import ERRORS, ask
from orchestrator.ssh.connection import Connection

FAILED = frozenset({"error", "kind", "message", "hint"})
"""keys of a part that failed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A training run as one of its hosts shows it."""

    process: Json | None
    """CONTRACT's `process`, with `identity`; None where the inventory names no process"""
    progress: Json | None
    source: Json | None
    samples: tuple[Json, ...]
    """of the training process, for a receipt: from before and after the rest was looked at; none where not asked for"""
    scan: Scan | None
    errors: tuple[str, ...]
    unscanned: OrchError | None = None
    """why there is no `scan` although one was asked for"""

    @property
    def neighbour(self) -> Json | None:
        """What an agent needs to know so that this training does not feel it: {identity, ranks}. None: not seen."""
        process = self.process or {}
        return {"identity": process["identity"], "ranks": process["ranks"]} if process.get("identity") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalFacts:
    """An evaluation host as a job needs to see it."""

    harness: HarnessFacts
    staged: Mapping[str, Json]
    """checkpoint identity -> where it lies"""
    arriving: Mapping[str, int]
    """checkpoint identity -> bytes on the disk of a shipment that has not ended"""
    runs: tuple[Run, ...]
    remote_folder: tuple[Json, ...]
    data: Mapping[str, Json]
    server: Json | None
    python: Json | None
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """One box's answer."""

    host: Json
    """cpus, load, memory, disk, gpus ..."""
    transport: str
    why: str
    runs: Mapping[str, RunFacts]
    evaluation: EvalFacts | None


def run_question(
    run: TrainingRun,
    host: Host,
    step: int | None = None,
    torn: Sequence[Torn] = (),
    job: Job | None = None,
    *,
    tensors: bool = False,
    known: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What to look at for one training run on one of its hosts; only the first host holds the checkpoints.

    With `step`, only the checkpoint of that step counts; `torn` are those that are known to be; with `job`, one
    whose model can't be taken out because orch does not read the file is passed over where the job wants the model.
    `tensors` also lists what the latest one holds. With `known` (path -> stamp), every checkpoint but those is looked
    into.
    """
    saved: dict[str, Any] = {
        "root": run.checkpoints,
        "layout": run.layout,
        "step": step,
        "torn": below(torn, host, run),
        "tensors": tensors,
    }
    saved["known"] = None if known is None else dict(known)
    if job is not None:
        saved.update(ship=job.ship, model_key=job.model_key)
    return {
        "name": run.name,
        "process": run.process.given() if run.process else None,
        "log": run.log,
        "progress": run.progress,
        "source": run.source,
        "checkpoints": saved if run.hosts[0] == host.name else None,
    }


def eval_question(host: Host, job: Job, local: Harness, *, digest: bool) -> dict[str, Any]:
    """What to look at for one job on an evaluation host. `digest` also digests the job's data (remembered there)."""
    return {
        "workdir": host.workdir,
        "remote": job.harness_remote,
        "entries": entries_of(local),
        "data": dict(job.data),
        "digest": digest,
        "headline": job.result.headline,
        "server": job.server,
        "python": host.python,
        "check_python": digest,
    }


def observe(
    connection: Connection,
    host: Host,
    *,
    role: Role,
    timeouts: Timeouts,
    runs: Sequence[TrainingRun] = (),
    evaluation: Mapping[str, Any] | None = None,
    step: int | None = None,
    torn: Sequence[Torn] = (),
    job: Job | None = None,
    tensors: bool = False,
    known: Mapping[str, str] | None = None,
    sample: bool = False,
    gpus: bool = True,
) -> HostFacts:
    """Look at a box: one exec. Raises what reaching it raises; a part that fails is said in its place."""
    args = {
        "disk_path": host.workdir if evaluation else (runs[0].checkpoints if runs else "/"),
        "runs": [run_question(run, host, step, torn, job, tensors=tensors, known=known) for run in runs],
        "gpus": gpus,
        "sample": sample,
        "eval": evaluation,
    }
    return read_answer(host, ask(connection, host, "observe", args, role=role, timeouts=timeouts), connection)


def read_answer(host: Host, answer: Json, connection: Connection) -> HostFacts:
    """The nouns in an `observe` answer."""
    evaluation = answer.get("eval")
    if isinstance(evaluation, dict) and "error" in evaluation:
        failure = ERRORS.get(evaluation.get("kind", ""), OrchError)
        raise failure(f"{host.name}: {evaluation['error']}", hint=evaluation.get("hint", ""), host=host.name)
    return HostFacts(
        host=answer["host"],
        transport=connection.transport,
        why=connection.why,
        runs={name: _run_facts(host, facts) for name, facts in answer["runs"].items()},
        evaluation=_eval_facts(host, evaluation) if evaluation else None,
    )


def unseen(run: TrainingRun, error: OrchError) -> HostFacts:
    """A training box that could not be reached, with its reason in the place of what would be known."""
    facts = RunFacts(process=None, progress=None, source=None, samples=(), scan=None, errors=(error.message,))
    return HostFacts(host={}, transport="", why="", runs={run.name: facts}, evaluation=None)


def _run_facts(host: Host, facts: Json) -> RunFacts:
    errors: list[str] = []

    def part(name: str) -> Json | None:
        value = facts.get(name)
        if isinstance(value, dict) and "error" in value and set(value) <= FAILED:
            errors.append(f"{host.name}: {name}: {value['error']}")
            return None
        return value

    scan = part("checkpoints")
    failed = facts.get("checkpoints") if scan is None else None
    return RunFacts(
        process=part("process"),
        progress=part("progress"),
        source=part("source"),
        samples=tuple(facts.get("samples") or ()),
        scan=read_scan(host.name, scan) if scan else None,
        errors=tuple(errors),
        unscanned=_unscanned(host, failed) if failed else None,
    )


def _unscanned(host: Host, failed: Json) -> OrchError:
    failure = ERRORS.get(failed.get("kind", ""), OrchError)
    said = str(failed.get("message") or failed["error"])
    return failure(f"{host.name}: {said}", hint=str(failed.get("hint") or ""), host=host.name)


def _eval_facts(host: Host, facts: Json) -> EvalFacts:
    harness = read_harness(host.name, facts["harness"])
    return EvalFacts(
        harness=harness,
        staged={row["identity"]: row for row in facts["staged"]},
        arriving={row["identity"]: row["bytes"] for row in facts["arriving"]},
        runs=tuple(read_run(host.name, row) for row in facts["runs"]),
        remote_folder=tuple(facts["remote_folder"]),
        data=facts["data"],
        server=facts["server"],
        python=facts["python"],
        errors=(*harness.notes, *([f"{host.name}: {warning}"] if (warning := facts["warning"]) else ())),
    )
