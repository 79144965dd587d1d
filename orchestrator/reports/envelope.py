"""What every command prints with --json around its own keys. Light, for `orch results` has a fraction of a second."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.errors import OrchError
from orchestrator.measured import Digests, Estimate

SCHEMA = 1
Document = dict[str, Any]


def document(
    command: str, body: Mapping[str, Any], warnings: Sequence[str] = (), error: OrchError | None = None
) -> Document:
    """What every command prints: schema, command, its own keys, warnings, and the error where there was one."""
    whole: Document = {"schema": SCHEMA, "command": command, **body, "warnings": list(warnings)}
    if error is not None:
        whole["error"] = {
            "code": error.code,
            "message": error.message,
            "hint": error.hint or None,
            "host": error.host or None,
        }
    return whole


class Written(list[str]):
    """A list in a document whose items are JSON already."""


def dumped(whole: Document) -> str:
    """One line of JSON, with null for NaN and infinity, which JSON does not have."""
    pieces = ["{"]
    for name, value in whole.items():
        pieces += [", " if len(pieces) > 1 else "", json.dumps(name), ": ", _json(value)]
    return "".join([*pieces, "}"])


def _json(value: Any) -> str:
    if isinstance(value, Written):
        return f"[{', '.join(value)}]"
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def estimate_body(estimate: Estimate | None) -> Document | None:
    """CONTRACT's {value, low, high}."""
    if estimate is None:
        return None
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def digests_body(digests: Digests) -> Document:
    """CONTRACT's `digests`."""
    return {
        "checkpoint": digests.checkpoint,
        "harness": digests.harness,
        "job": digests.job,
        "data": digests.data,
    }
