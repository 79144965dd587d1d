"""Facts -> Plan. Pure: no connection, no clock, no file; `--dry-run` prints what this returns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.amounts import memory, size
from orchestrator.model import Action, Checkpoint, Digests, Drift, Host, Job, Plan, Refusal, Route, Run, ValueSource

RESERVE = 256 * 2**20
"""bytes kept free on the evaluation host's disk beside what is shipped"""
RUN_ROOM = 8 * 2**20
"""bytes of disk that a run folder needs; the agent looks at the same once more before it starts one"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSide:
    """What a plan needs to know of the evaluation host."""

    host: Host
    staged: bool
    """whether the checkpoint lies there already, whole"""
    arriving: int
    """bytes on its disk that an earlier shipment of the checkpoint holds already"""
    same_run: Run | None
    """the failed or lost run with the same key, if there was one"""
    disk_free: int
    memory_available: int
    memory_reserve: int = 0
    """of it, what is kept for a training on this host"""
    missing: tuple[Refusal, ...]
    """what the job needs and the host has not: data, interpreter, reference server"""
    trains: bool
    """whether a training lives on this host, or may"""
    unseen: tuple[str, ...] = ()
    """those runs of them of which that can't be known"""
    server: str = ""
    """in words: that the job's reference server is on a training host"""


def make_plan(
    *,
    checkpoint: Checkpoint,
    drift: Drift,
    side: EvalSide,
    job: Job,
    allow_on_training_host: bool,
    consent_possible: bool,
    routes: tuple[Route, ...],
) -> Plan:
    """What eval-latest will do for a checkpoint that no run is about, in order, and what forbids it.

    `consent_possible`: whether anybody could agree to replacing what orch did not put on the host.
    """
    same = side.same_run
    actions: list[Action] = []
    if drift.state != "in_sync":
        actions.append(Action(do="sync", why=_drift_reason(drift, side.host), bytes=_push_bytes(drift)))
    if not side.staged:
        what = "its weights" if job.ship == "model" else "the whole file: opened by the harness as it is"
        where = "is partly" if side.arriving else "is not"
        why = f"step {checkpoint.step} {where} on {side.host.name} yet; {what}"
        actions.append(Action(do="ship", why=why, bytes=checkpoint.ship_bytes, route=_route(routes)))
    again = f"; run {same.id} of it {same.state}" if same is not None else ""
    finished = same is not None and same.state == "succeeded"
    why = f"step {checkpoint.step} {'once more' if finished else 'has no finished evaluation'}{again}"
    actions.append(Action(do="launch", why="; ".join(filter(None, (why, _beside(side), side.server)))))
    refused = _refusals(checkpoint, side, job, allow_on_training_host=allow_on_training_host)
    if drift.unresolved:
        refused = (*refused, unresolved_refusal(drift, job))
    if drift.overwrites_unknown and not consent_possible:
        refused = (*refused, drift_refusal(drift, side.host, job))
    return Plan(checkpoint=checkpoint, actions=tuple(actions), refused=refused, routes=routes)


def _beside(side: EvalSide) -> str:
    """What an evaluation may have on a host that trains."""
    if not side.trains:
        return ""
    kept = f"{side.memory_reserve / 2**30:.1f} GiB of memory kept for it"
    return f"beside the training on {side.host.name}: on the cores that it leaves, {kept}, stopped if it suffers"


def _route(routes: tuple[Route, ...]) -> str:
    """The first of the ways, and what it means for everybody on it."""
    return f"{routes[0].kind}: {routes[0].why}" if routes else ""


def _drift_reason(drift: Drift, host: Host) -> str:
    reasons = {
        "local_ahead": f"the local harness is ahead of the one on {host.name}",
        "remote_edited": f"the harness was edited on {host.name} since the last sync",
        "both": f"the harness was edited both here and on {host.name}",
        "unknown": f"the harness on {host.name} differs, and orch has not synced it before",
        "absent": f"there is no harness on {host.name} yet",
    }
    return reasons[drift.state]


def _push_bytes(drift: Drift) -> int:
    changed = {change.path for change in drift.files if change.change != "extra"}
    return sum(file.size for file in drift.local.files if file.path in changed)


def drift_refusal(drift: Drift, host: Host, job: Job) -> Refusal:
    """For a harness that holds what orch did not put there, while nobody consents to replacing it."""
    hint = (
        f"orch sync-harness {job.name} --host {host.name} shows the difference; then --keep-remote, --merge, or "
        "--take-local; --yes takes ours, saving theirs"
    )
    return Refusal(reason=_drift_reason(drift, host), hint=hint)


def unresolved_refusal(drift: Drift, job: Job) -> Refusal:
    """For a local harness in which conflicts of a merge still stand."""
    names = ", ".join(drift.unresolved)
    hint = f"resolve them (<<<<<<< to >>>>>>>), then: orch sync-harness {job.name}"
    return Refusal(reason=f"{job.harness_local}: conflicts of the last merge stand in {names}", hint=hint)


def kept_free(host: Host) -> int:
    """Bytes of an evaluation host's disk that a shipment leaves free."""
    return RESERVE if host.keep_free is None else host.keep_free


def beside_refusal(host: Host, unseen: Sequence[str]) -> Refusal:
    """For a host where a training lives, or where that can't be known of the runs `unseen`."""
    reason = f"a training runs on {host.name}: no evaluation beside it"
    if unseen:
        reason = f"whether {', '.join(unseen)} runs on {host.name} can't be seen: no evaluation beside it"
    return Refusal(reason=reason, hint="name another host with --host, or allow it with --allow-on-training-host")


def _refusals(checkpoint: Checkpoint, side: EvalSide, job: Job, *, allow_on_training_host: bool) -> tuple[Refusal, ...]:
    refused = list(side.missing)
    name = side.host.name
    if side.trains and not allow_on_training_host:
        refused.append(beside_refusal(side.host, side.unseen))
    needed = RUN_ROOM if side.staged else max(0, checkpoint.ship_bytes - side.arriving) + kept_free(side.host)
    if side.disk_free < needed:
        reason = f"{name}: {size(side.disk_free)} free below {side.host.workdir}, {size(needed)} needed"
        refused.append(Refusal(reason=reason, hint=f"orch clean --host {name}, or name another workdir in hosts.yaml"))
    refused += _memory_refusals(checkpoint, side, job)
    return tuple(refused)


def _memory_refusals(checkpoint: Checkpoint, side: EvalSide, job: Job) -> list[Refusal]:
    """By the job's own estimate; a job that gives none needs its weights in memory at least."""
    name, allowed = side.host.name, side.host.limits.memory
    asked = job.limits.memory
    weights = f"the weights alone are {memory(checkpoint.ship_bytes)}"
    what = weights if asked is None else f"the job asks for {memory(asked)}"
    needed = checkpoint.ship_bytes if asked is None else asked
    found = []
    if allowed is not None and needed > allowed:
        reason = f"{name}: an evaluation there may use {memory(allowed)} of memory, {what}"
        found.append(Refusal(reason=reason, hint=f"raise limits.memory of {name} in hosts.yaml, or name another host"))
    if side.memory_available < needed + side.memory_reserve:
        kept = f", {memory(side.memory_reserve)} are kept for the training" if side.memory_reserve else ""
        reason = f"{name}: {memory(side.memory_available)} of memory available{kept}, {what}"
        found.append(Refusal(reason=reason, hint="wait, name another host with --host, or lower limits.memory"))
    return found


# -- digests: what makes two evaluations the same ------------------------------------------------------------------


def digest_of(value: object) -> str:
    """sha256 (hex) of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def job_digest(job: Job) -> str:
    """Of what a job means: its command, data paths, environment (names of secrets, never values) and result rule."""
    env = {
        key: {"from": value.kind, "name": value.name} if isinstance(value, ValueSource) else value
        for key, value in job.env.items()
    }
    rule = job.result
    return digest_of(
        {
            "command": list(job.command),
            "data": dict(job.data),
            "env": env,
            "ship": job.ship,
            "model_key": job.model_key,
            "result": [rule.file, rule.headline, rule.better, rule.items, rule.item_id, rule.item_value],
            "remote": job.harness_remote,
        }
    )


def data_digest(data: Mapping[str, Mapping[str, object]]) -> str:
    """Of all data folders of a job, from their own digests."""
    return digest_of({name: facts.get("digest") for name, facts in data.items()})


def run_key(digests: Digests) -> str:
    """Equal for two evaluations that would measure the same thing: their run is one run."""
    return digest_of([digests.checkpoint, digests.harness, digests.job, digests.data])
