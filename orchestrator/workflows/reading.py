"""A Result out of a finished run's small files, on the day it was collected or years later."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator import __version__, records, windows
from orchestrator.actions import comparison
from orchestrator.clock import utc_now
from orchestrator.errors import EvaluationFailed, Refused
from orchestrator.measured import Receipt, Result, ResultRule

Json = Mapping[str, Any]
Read = Callable[[str], bytes | None]
"""a file of a run folder by its name; None where there is none"""
SPEC_SCHEMA = 1


class NoHeadline(EvaluationFailed):
    """The result file is sound, but has no number where the job says."""


def files_in(folder: Path) -> Read:
    """The files of a run folder on this computer."""

    def read(name: str) -> bytes | None:
        place = folder / name
        inside = place.is_file() and place.resolve().is_relative_to(folder.resolve())
        return place.read_bytes() if inside else None

    return read


def spec_of(read: Read) -> Json | None:
    """What a run was started with; None for a folder that is no run's. Raises Refused for a newer orch's."""
    spec = _object(read("spec.json"))
    step = None if spec is None else spec.get("step")
    if spec is None or type(step) is not int or not 0 <= step < 2**63 or not isinstance(spec.get("id"), str):
        return None
    if isinstance(spec.get("schema"), int) and spec["schema"] > SPEC_SCHEMA:
        reason = f"run {spec['id']} was started by a newer orch (schema {spec['schema']})"
        raise Refused(reason, hint="update orch")
    return spec


def windows_of(spec: Json) -> list[dict[str, Any]]:
    """Those from before the run began. Its files lie on a box where others may write: a damaged one tells nothing."""
    from orchestrator.actions import training  # brings all of a conversation with a host, and comparing needs none

    kept = spec.get("windows", [])
    lost = training.window("ship", "a damaged spec.json", None, None)
    return [one if windows.is_sound(one) else lost for one in kept] if isinstance(kept, list) else [lost]


def beside_of(read: Read) -> list[str]:
    """Names of the trainings beside which a run was started, as its supervisor saw them then."""
    told = (_object(read("started.json")) or {}).get("beside")
    return [name for name in told if isinstance(name, str)] if isinstance(told, list) else []


def has_succeeded(read: Read) -> bool:
    """Whether the run ended well, by its own last file."""
    return (_object(read("exit.json")) or {}).get("state") == "succeeded"


def result_of(read: Read, host: str, folder: Path, receipt: Receipt, rule: ResultRule | None = None) -> Result:
    """The result of a run that succeeded. `rule` is the job's of today: for runs of early versions, whose spec does not
    hold theirs, and for one whose own names a headline that is not there.

    Raises EvaluationFailed where the spec is another run's, or the result file is missing, no JSON object, or lacks the
    headline.
    """
    spec, ended = spec_of(read), _object(read("exit.json")) or {}
    if spec is None or spec["id"] != folder.name:  # a host that tells one run's files as another's replaces no result
        raise EvaluationFailed(f"the files of run {folder.name} are not its own: spec.json names another, or none")
    today, rule = rule, records.rule_of(spec["rule"]) if isinstance(spec.get("rule"), dict) else rule
    if rule is None:
        raise EvaluationFailed(f"run {spec['id']} does not say where its headline is, nor does a job of its name")
    rule, document = _by_a_rule_that_fits(read(rule.file), rule, today, f"jobs/{spec.get('job')}.yaml")
    baseline, digests = document.get("baseline"), spec.get("digests")
    ours, theirs = comparison.items(document, rule), comparison.items(baseline, rule)
    return Result(
        id=str(spec["id"]),
        run=str(spec.get("run") or ""),
        job=str(spec.get("job") or ""),
        host=host,
        step=spec["step"],
        headline_name=rule.headline or "",
        headline=comparison.headline(document, rule),
        baseline=comparison.headline(baseline, rule) if isinstance(baseline, dict) else None,
        verdict=comparison.paired(ours, theirs, rule.better).verdict,
        digests=records.digests_of(digests if isinstance(digests, dict) else {}),
        receipt=receipt,
        source=spec.get("source"),
        origin=str(spec.get("origin") or ""),
        file=rule.file,
        ended_at=str(ended.get("ended_at") or utc_now()),
        folder=folder,
        rule=rule,
        versions=_versions(spec, document),
    )


def _by_a_rule_that_fits(
    content: bytes | None, rule: ResultRule, today: ResultRule | None, job_file: str
) -> tuple[ResultRule, Mapping[str, Any]]:
    """The document, and by which rule it has its headline: the run's own, else today's, which somebody has mended."""
    try:
        return rule, read_result(content, rule, job_file)
    except NoHeadline:
        if today is None or today.file != rule.file:
            raise
        return today, read_result(content, today, job_file)


def document_of(result: Result) -> Mapping[str, Any]:
    """The result file of a result that is here. Raises EvaluationFailed."""
    return read_result(files_in(result.folder)(result.file), result.rule, f"jobs/{result.job}.yaml")


def doubt(result: Result) -> str:
    """What its job names and its result file lacks, though it has its headline; "" where all is there."""
    try:
        lacks = comparison.missing(document_of(result), result.rule)
    except (EvaluationFailed, OSError):
        return ""  # the folder has gone since
    if not lacks:
        return ""
    return f"{result.file} of run {result.id}: {lacks}; so no interval and no verdict: mend jobs/{result.job}.yaml"


def read_result(content: bytes | None, rule: ResultRule, job_file: str) -> Mapping[str, Any]:
    """The result file's JSON object, with the headline that the job names in it. Raises EvaluationFailed."""
    file, headline = rule.file, rule.headline
    if content is None:
        raise EvaluationFailed(f"the evaluation ended well but wrote no {file}", hint=f"see command: in {job_file}")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise EvaluationFailed(f"{file} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise EvaluationFailed(f"{file} holds no JSON object")
    if headline and not comparison.is_number(comparison.pick(document, headline)):
        there = comparison.keys_there(document, headline)
        raise NoHeadline(
            f"{file} has no number at {headline}", hint=f"mend result.headline in {job_file}; keys there: {there}"
        )
    return document


def _versions(spec: Json, document: Mapping[str, Any]) -> dict[str, str]:
    """Of orch, and what the result file itself says in provenance.versions."""
    named = comparison.pick(document, "provenance.versions")
    libraries = {str(k): str(v) for k, v in named.items()} if isinstance(named, dict) else {}
    return {"orch": str(spec.get("orch") or __version__), **libraries}


def _object(content: bytes | None) -> dict[str, Any] | None:
    try:
        value = json.loads(content or b"null")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
