"""The last step of `orch eval-latest`: a finished run's small files brought home, read, and written into the ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from orchestrator import receipts, windows
from orchestrator.actions import comparison, receipt_files, runs, training
from orchestrator.actions.ledger import Ledger
from orchestrator.errors import EvaluationFailed
from orchestrator.model import Job, Receipt, Result, Run
from orchestrator.ssh.choose import Connections
from orchestrator.workflows.look import Look, look_at
from orchestrator.workflows.scene import Scene

AT_ONCE = 5
"""finished runs brought home by one command"""


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
    spec = json.loads(files["spec.json"])
    last = look_again(scene, connections, "collect")
    receipt = receipts.receipt([*_windows(spec), *looks, last])
    kept = receipt_files.of_evaluation(receipt, run, scene.run.name)
    with Ledger.at_home() as ledger:
        folder = ledger.keep_files(scene.evaluate.name, run.id, {**files, **kept})
        if run.state != "succeeded":
            return None
        document = read_result(files.get(scene.job.result.file), scene.job)
        result = _result(scene, run, document, receipts.brief(receipt), folder)
        ledger.add(result)
    return result


def _windows(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those from before the run began. Its files lie on a box where others may write: a damaged one tells nothing."""
    kept = spec.get("windows", [])
    lost = training.window("ship", "a damaged spec.json", None, None)
    return [one if windows.is_sound(one) else lost for one in kept] if isinstance(kept, list) else [lost]


def earlier(scene: Scene, but: str) -> tuple[Result, ...]:
    """Results of the same job on the same training run that the ledger knows, without the run of that id."""
    with Ledger.at_home() as ledger:
        known = ledger.results(scene.run.name)
    return tuple(one for one in known if one.job == scene.job.name and one.origin == scene.origin and one.id != but)


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
    """The ledger's result of this run."""
    with Ledger.at_home() as ledger:
        known = ledger.results(scene.run.name)
    return next((one for one in known if (one.id, one.host, one.origin) == (run.id, run.host, scene.origin)), None)


def read_result(content: bytes | None, job: Job) -> Mapping[str, Any]:
    """The result file's JSON object, with the headline that the job names in it."""
    file, headline = job.result.file, job.result.headline
    if content is None:
        raise EvaluationFailed(
            f"the evaluation ended well but wrote no {file}", hint=f"see command: in {job.path.name}"
        )
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise EvaluationFailed(f"{file} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise EvaluationFailed(f"{file} holds no JSON object")
    if headline and not comparison.is_number(comparison.pick(document, headline)):
        there = ", ".join(str(key) for key in list(document)[:20])
        raise EvaluationFailed(
            f"{file} has no number at {headline}", hint=f"see result.headline in {job.path.name}; keys there: {there}"
        )
    return document


def _result(scene: Scene, run: Run, document: Mapping[str, Any], receipt: Receipt, folder: Path) -> Result:
    rule = scene.job.result
    baseline = document.get("baseline")
    ours, theirs = comparison.items(document, rule), comparison.items(baseline, rule)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Result(
        id=run.id,
        run=scene.run.name,
        job=scene.job.name,
        host=scene.evaluate.name,
        step=run.step,
        headline_name=rule.headline or "",
        headline=comparison.headline(document, rule),
        baseline=comparison.headline(baseline, rule) if isinstance(baseline, dict) else None,
        verdict=comparison.verdict(ours, theirs, rule.better),
        digests=run.digests,
        receipt=receipt,
        source=scene.training.source,
        origin=scene.origin,
        file=rule.file,
        ended_at=run.ended_at or now,
        folder=folder,
    )
