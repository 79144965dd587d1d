"""The last step of `orch eval-latest`: a finished run's small files brought home, read, and written into the ledger."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from orchestrator import measures, receipts, windows
from orchestrator.actions import receipt_files, runs, training
from orchestrator.actions.ledger import Ledger
from orchestrator.errors import EvaluationFailed
from orchestrator.model import Entry, Result, Run
from orchestrator.ssh.choose import Connections
from orchestrator.ssh.witness import Gap
from orchestrator.workflows import reading
from orchestrator.workflows.look import Look, look_at
from orchestrator.workflows.scene import Scene

AT_ONCE = 5
"""finished runs brought home by one command"""
SCRIPT_LIMIT = 1 << 20
"""bytes of a harness file that is kept, so that versions can be told apart line by line"""


def look_again(scene: Scene, connections: Connections, doing: Literal["observe", "collect"]) -> dict[str, Any]:
    """A new window around one look at the training process, which is empty where its box can't be reached."""
    look = Look(host=scene.train, runs=(scene.run,), step=scene.options.step, sample=True)
    outcome = look_at([look], connections, scene.inventory.timeouts)[0]
    facts = outcome.value.runs[scene.run.name] if outcome.value is not None else None
    return training.observed(doing, scene.train.name, facts)


def collect(scene: Scene, run: Run, connections: Connections, looks: Sequence[dict[str, Any]] = ()) -> Result | None:
    """The result of a run that has ended; None for one that did not succeed, whose files are kept all the same.

    `looks` are windows of this command between those that the run's spec holds and now. Raises EvaluationFailed where
    the result file is missing, no JSON object, or lacks the headline.
    """
    files = runs.collect(connections.to(scene.evaluate), scene.evaluate, run.id, scene.inventory.timeouts)
    spec = reading.spec_of(files.get) or {}
    last = look_again(scene, connections, "collect")
    kept = reading.windows_of(spec)
    unseen = _unseen(scene, kept, reading.beside_of(files.get))
    receipt = receipts.receipt([*_closed(scene, run, kept, connections), *unseen, *looks, last])
    ours = receipt_files.of_evaluation(receipt, run, scene.run.name)
    with Ledger.at_home() as ledger:
        folder = ledger.keep_files(scene.evaluate.name, run.id, {**files, **ours})
        if run.state != "succeeded":
            return None
        try:
            found = reading.result_of(files.get, scene.evaluate.name, folder, receipts.brief(receipt), scene.job.result)
        except EvaluationFailed as error:
            raise _unreadable(run, error) from None
        # whoever started it may know the training box by another name
        result = replace(found, origin=scene.origin, source=found.source or scene.training.source)
        ledger.add(result)
        _keep_scripts(scene, ledger)
    return result


def _unreadable(run: Run, error: EvaluationFailed) -> EvaluationFailed:
    """The same error with the run, and what to type: a misspelt headline needs no second evaluation."""
    again = f"then orch attach {run.id} reads it again"
    if not isinstance(error, reading.NoHeadline):
        again = f"orch logs {run.id} shows its log; orch rerun {run.id} evaluates again"
    hint = "; ".join(filter(None, (error.hint, again)))
    return EvaluationFailed(f"run {run.id} on {run.host}: {error.message}", hint=hint, host=run.host)


def _keep_scripts(scene: Scene, ledger: Ledger) -> None:
    """Keep the local harness files, each under its digest: the report shows what changed between two versions."""
    for file in scene.ours.files:
        if file.size <= SCRIPT_LIMIT and not ledger.has_script(file.sha256):
            try:
                content = (scene.job.harness_local / file.path).read_bytes()
            except OSError:
                continue  # it went away since it was looked at
            if hashlib.sha256(content).hexdigest() == file.sha256:  # else it was edited since it was looked at
                ledger.keep_script(file.sha256, content)


def _closed(scene: Scene, run: Run, kept: list[dict[str, Any]], connections: Connections) -> list[dict[str, Any]]:
    """With a last look for the trainings beside which was evaluated.

    Where it ended long before anybody looks, what happened since is not its doing: the window stays at its beginning.
    """
    named = {one.get("run", ""): one["host"] for one in kept if one["doing"] == "evaluate"}
    there = tuple(known for name in named if (known := scene.inventory.runs.get(name)) is not None)
    if not there:
        return kept
    look = Look(host=scene.evaluate, runs=there, sample=True)
    outcome = look_at([look], connections, scene.inventory.timeouts)[0]
    seen = outcome.value.runs if outcome.value is not None else {}
    last = {name: training.observed("collect", host, seen.get(name)) for name, host in named.items()}

    def closed(one: dict[str, Any]) -> dict[str, Any]:
        after = last[one.get("run", "")]["after"]
        late = windows.apart({"at": run.ended_at}, after or {})
        if late is not None and late > measures.AFTERMATH:
            why = "the evaluation had ended before anybody looked"
            gap = {"from": one["from"] or "?", "to": run.ended_at or "?", "why": why}
            return {**one, "after": one["before"], "to": one["from"], "gaps": [gap]}
        return {**one, "after": after, "to": (after or {}).get("at")}

    return [*(closed(one) if one["doing"] == "evaluate" else one for one in kept), *last.values()]


def _unseen(scene: Scene, kept: list[dict[str, Any]], beside: Sequence[str]) -> list[dict[str, Any]]:
    """Empty windows for trainings that began between the plan and the evaluation, which nobody saw before it."""
    seen = {one.get("run") for one in kept if one["doing"] == "evaluate"}
    gaps = [Gap(since="?", until="?", why="it began after the evaluation was asked for, and before that started")]
    return [
        training.window("evaluate", scene.named_there(name), None, None, gaps=gaps)
        for name in beside
        if name not in seen and name in scene.inventory.runs
    ]


def earlier(scene: Scene, but: str) -> tuple[Entry, ...]:
    """Results of the same job on the same training run that the ledger knows, without the run of that id."""
    with Ledger.at_home() as ledger:
        known = ledger.entries(scene.run.name, scene.origin, scene.job.name)
    return tuple(one for one in known if one.id != but)


def bring_home(scene: Scene, connections: Connections) -> list[tuple[Run, Result]]:
    """Collect other finished runs of this job that nobody has collected, such as detached ones."""
    brought = []
    rows = [row for row in scene.facts.runs if (row.run, row.job) == (scene.run.name, scene.job.name)]
    for row in rows[-AT_ONCE:]:
        if row.state == "succeeded" and known_result(scene, row) is None:
            try:
                result = collect(scene, row, connections)
            except EvaluationFailed:
                continue  # its result can't be read, which is said to whoever asks for that step
            if result is not None:
                brought.append((row, result))
    return brought


def known_result(scene: Scene, run: Run) -> Result | None:
    """The ledger's result of this run; one whose folder has gone is collected again."""
    with Ledger.at_home() as ledger:
        known = ledger.find(run.host, run.id)
    return known if known is not None and known.origin == scene.origin else None
