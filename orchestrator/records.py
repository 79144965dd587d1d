"""A Result as the document in its run's folder, and back. Every earlier schema is read; a newer one is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import OrchError, Refused
from orchestrator.measured import Digests, Entry, Estimate, Receipt, Result, ResultRule

FILE = "orch-result.json"
"""the last file that is written into a run's folder on this computer"""
SCHEMA = 2
MOST_STEPS = 2**63
"""a step is below it: the ledger's index holds no larger number"""
NUMBERS = ("value", "low", "high", "base_value", "base_low", "base_high")
"""fields of an Entry"""
Document = dict[str, Any]


def to_document(result: Result) -> Document:
    """A result as plain JSON values."""
    plain = asdict(replace(result, versions={}))  # asdict can't copy a read-only mapping
    return {**plain, "folder": str(result.folder), "versions": dict(result.versions), "schema": SCHEMA}


def from_document(document: Mapping[str, Any]) -> Result:
    """A result from its JSON values, whatever schema they have. Raises Refused for a newer one, OrchError for none."""
    try:
        return _result(upgraded(document))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise OrchError(f"not a result: {type(error).__name__}: {error}") from None


def read(folder: Path) -> Result:
    """The result in a run's folder on this computer. Raises OrchError, FileNotFoundError."""
    file = folder / FILE
    try:
        document = json.loads(file.read_bytes())
        if not isinstance(document, dict):
            raise OrchError("not a result: no JSON object")
        result = from_document(document)
    except (OrchError, ValueError, RecursionError) as error:
        kind = type(error) if isinstance(error, OrchError) else OrchError
        raise kind(f"{file}: {error}", hint=getattr(error, "hint", "")) from None
    return replace(result, folder=folder)  # state folders are moved and copied


def upgraded(document: Mapping[str, Any]) -> Document:
    """The same document in today's schema. Raises Refused for a newer one."""
    schema = document.get("schema")
    if not isinstance(schema, int) or schema < 1:
        raise OrchError("not a result: it has no schema number")
    if schema > SCHEMA:
        raise Refused(f"written by a newer orch (schema {schema}, this one knows {SCHEMA})", hint="update orch")
    found = dict(document)
    for upgrade in UPGRADES[schema - 1 :]:
        found = upgrade(found)
    return found


def _to_2(document: Document) -> Document:
    """Schema 1 did not say how its file is read, at first not even its name. DFlash results had the items of today."""
    name, file = document["headline_name"], document.get("file", ResultRule().file)
    dflash = name == "acceptance_length.walk_macro"
    items = {"items": "prompts", "item_id": "id", "item_value": "acceptance_length"} if dflash else {}
    rule = {"file": file, "headline": name or None, **items}
    return {"origin": "", "source": None, **document, "file": file, "rule": rule, "versions": {}}


UPGRADES: tuple[Callable[[Document], Document], ...] = (_to_2,)
"""the n-th makes schema n + 1 of schema n"""


def _result(document: Document) -> Result:
    values = _known(Result, document)
    receipt = _known(Receipt, values["receipt"])
    lists: dict[str, Any] = {name: tuple(item) for name, item in receipt.items() if isinstance(item, list)}
    values["receipt"] = Receipt(**{**receipt, **lists})
    values["digests"] = Digests(**_known(Digests, values["digests"]))
    for name in ("headline", "baseline"):
        values[name] = Estimate(**_known(Estimate, values[name])) if values[name] else None
    values["folder"] = Path(values["folder"])
    values["rule"] = rule_of(values["rule"])
    result = Result(**values)
    _check(result)
    return result


def _check(result: Result) -> None:
    """Raises what `from_document` catches where a value is not of its field's kind: a ledger would stumble over it."""
    for name, value in entry_of(result)._asdict().items():
        if name == "step":
            sound = type(value) is int and 0 <= value < MOST_STEPS
        elif name in NUMBERS:
            sound = value is None or (type(value) in (int, float) and math.isfinite(value))
        else:
            sound = isinstance(value, str) or (name == "verdict" and value is None)
        if not sound:
            raise ValueError(f"{name} is {ascii(value)[:80]}")
    receipt, texts = result.receipt, (result.file, *result.receipt.reasons, *result.receipt.limits)
    mappings = (result.source or {}, result.versions, *receipt.windows, *receipt.hosts)
    if not all(isinstance(one, str) for one in texts) or not all(isinstance(one, Mapping) for one in mappings):
        raise ValueError("its receipt, source or versions make no sense")


def rule_of(document: Mapping[str, Any]) -> ResultRule:
    """A result rule from its JSON values, which may come from a host: what is no text is left out."""
    known = {name: value for name, value in _known(ResultRule, document).items() if isinstance(value, str)}
    better: Literal["higher", "lower"] = "lower" if known.pop("better", "") == "lower" else "higher"
    return ResultRule(**known, better=better)


def digests_of(row: Mapping[str, Any]) -> Digests:
    """Digests as they cross the wire; what is not told is empty."""
    return Digests(**{name: str(row.get(name) or "") for name in ("checkpoint", "harness", "job", "data")})


def _known(noun: type[Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """The values of those fields that the noun has: a later version of the same schema may have added keys."""
    names = {field.name for field in fields(noun)}
    return {name: value for name, value in document.items() if name in names}


def entry_of(result: Result) -> Entry:
    """The line of the ledger that a result makes."""
    ours, base, digests = result.headline, result.baseline, result.digests
    return Entry(
        id=result.id,
        host=result.host,
        run=result.run,
        job=result.job,
        origin=result.origin,
        step=result.step,
        ended_at=result.ended_at,
        headline_name=result.headline_name,
        better=result.rule.better,
        value=ours.value if ours else None,
        low=ours.low if ours else None,
        high=ours.high if ours else None,
        base_value=base.value if base else None,
        base_low=base.low if base else None,
        base_high=base.high if base else None,
        verdict=result.verdict,
        receipt=result.receipt.verdict,
        checkpoint=digests.checkpoint,
        harness=digests.harness,
        job_digest=digests.job,
        data=digests.data,
    )
