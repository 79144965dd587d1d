"""JSON Schemas of what commands print with --json: the promise that programs rely on.

Later versions add keys, so other keys are allowed everywhere. A document that carries `error` may lack the rest.
"""

from __future__ import annotations

from typing import Any

from orchestrator.errors import ConfigError

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
MEASURED: Schema = {"anyOf": [NUMBER, {"enum": ["nan", "inf", "-inf"]}]}
"""what a training says of itself; JSON has no number for one that has diverged"""
FLAG: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)$"}
"""ISO-8601 in UTC"""
EXIT_CODES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 124, 130)
RUN_STATES = ("queued", "running", "succeeded", "failed", "cancelled", "refused", "lost")
VERDICTS = ("undisturbed", "changed", "ended", "not_observed")


def one_of(*words: str) -> Schema:
    """One of these words."""
    return {"enum": list(words)}


def maybe(schema: Schema) -> Schema:
    """The same, or null where it is not known."""
    return {"anyOf": [schema, {"type": "null"}]}


def many(schema: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": schema}


def record(**keys: Schema) -> Schema:
    """An object that has at least these keys."""
    return {"type": "object", "properties": keys, "required": list(keys)}


ERROR = record(code={"enum": list(EXIT_CODES)}, message=TEXT, hint=maybe(TEXT), host=maybe(TEXT))

LATEST = maybe(record(path=TEXT, step=COUNT, bytes=COUNT, age_s=maybe(NUMBER)))
GPU = record(
    index=COUNT,
    name=TEXT,
    role=maybe(TEXT),
    utilisation=maybe(NUMBER),
    memory_used=maybe(COUNT),
    memory_total=maybe(COUNT),
    clients=many(INTEGER),
)
HOST = record(
    name=TEXT,
    ok=FLAG,
    error=maybe(TEXT),
    transport=maybe(TEXT),
    cpus=maybe(COUNT),
    load=maybe(NUMBER),
    memory=maybe(record(total=maybe(COUNT), available=maybe(COUNT))),
    disk=maybe(record(path=TEXT, total=COUNT, free=COUNT)),
    gpus=many(GPU),
)
PROCESS = record(
    state=one_of("running", "stopped", "zombie", "absent", "ambiguous", "hidden"),
    pid=maybe(INTEGER),
    started_at=maybe(TIME),
    user=maybe(TEXT),
)
PROGRESS = maybe(
    record(
        step=maybe(COUNT),
        epoch=maybe(MEASURED),
        loss=maybe(MEASURED),
        rate=maybe(NUMBER),
        rate_unit=maybe(TEXT),
        age_s=maybe(NUMBER),
        stalled=maybe(FLAG),
    )
)
REMOTE_ENTRY = record(
    path=TEXT,
    kind=one_of("checkpoint", "cache", "result", "other"),
    bytes=maybe(COUNT),
    modified_at=maybe(TIME),
    headline=maybe(NUMBER),
)
TRAINING = record(
    name=TEXT,
    host=TEXT,
    process=maybe(PROCESS),
    progress=PROGRESS,
    latest=LATEST,
    steps_behind=maybe(INTEGER),
    next_checkpoint_in_s=maybe(NUMBER),
    skipped=many(record(path=TEXT, reason=TEXT)),
    harness=one_of("in_sync", "local_ahead", "remote_edited", "both", "absent", "unknown"),
    evaluations=many(record(id=TEXT, step=COUNT, state=one_of(*RUN_STATES))),
    unevaluated=many(COUNT),
    remote_folder=many(REMOTE_ENTRY),
)

CANDIDATE = record(
    path=TEXT, step=maybe(COUNT), state=one_of("complete", "writing", "torn", "ignored"), reason=maybe(TEXT)
)
FOUND = maybe(record(path=TEXT, step=COUNT, bytes=COUNT, ship_bytes=COUNT, identity=TEXT))

CHANGED_FILE = record(
    path=TEXT, change=one_of("added", "modified", "deleted", "mode", "extra"), side=one_of("local", "remote", "both")
)
CHANGED_FILE["properties"]["renamed_from"] = maybe(TEXT)

ACTION = record(do=one_of("sync", "ship", "launch", "join", "nothing"), why=TEXT, bytes=maybe(COUNT), route=maybe(TEXT))
ESTIMATE = record(value=NUMBER, low=maybe(NUMBER), high=maybe(NUMBER))
PLAN = record(checkpoint=maybe({"type": "object"}), actions=many(ACTION), refused=many(record(reason=TEXT, hint=TEXT)))
MEASURED = record(
    file=maybe(TEXT),
    headline=maybe(record(name=TEXT, **ESTIMATE["properties"])),
    baseline=maybe(ESTIMATE),
    verdict=maybe(one_of("better", "worse", "no_difference")),
)
DIGESTS = record(checkpoint=TEXT, harness=TEXT, job=TEXT, data=TEXT)

SIDE = record(id=TEXT, baseline=FLAG, run=TEXT, step=maybe(COUNT), headline=maybe(ESTIMATE), digests=DIGESTS)
RESULT = record(
    id=TEXT,
    run=TEXT,
    job=TEXT,
    host=TEXT,
    step=COUNT,
    headline=maybe(record(name=TEXT, **ESTIMATE["properties"])),
    baseline=maybe(ESTIMATE),
    verdict=maybe(one_of("better", "worse", "no_difference")),
    digests=DIGESTS,
    receipt=one_of(*VERDICTS),
    ended_at=TEXT,
)

STAGED = {
    "host": TEXT,
    "identity": TEXT,
    "step": maybe(COUNT),
    "bytes": COUNT,
    "path": TEXT,
    "source": maybe(TEXT),
    "staged_at": maybe(TIME),
    "state": one_of("complete", "arriving"),
    "used_by": many(TEXT),
}

SAMPLE = maybe(record(at=maybe(TIME), state=maybe(TEXT), identity=maybe({"type": "object"}), hidden=many(TEXT)))
WINDOW = {
    **record(
        doing=TEXT,
        host=TEXT,
        before=SAMPLE,
        after=SAMPLE,
        samples=many(SAMPLE),
        **{"from": maybe(TIME), "to": maybe(TIME)},
    ),
    "description": "a stretch in which orch, or a guarded command, was at work",
}
RECEIPT: Schema = {
    "verdict": one_of(*VERDICTS),
    "reasons": many(TEXT),
    "windows": many(WINDOW),
    "limits": many(TEXT),
    "hosts": many(record(host=TEXT, verdict=one_of(*VERDICTS), reasons=many(TEXT))),
    "id": TEXT,
    "kind": one_of("evaluation", "guard"),
    "run": maybe(TEXT),
    "step": maybe(COUNT),
    "exit_code": maybe(INTEGER),
    "ended_at": maybe(TIME),
    "file": TEXT,
}
RUN = record(
    id=TEXT,
    job=TEXT,
    host=TEXT,
    run=maybe(TEXT),
    step=COUNT,
    state=one_of(*RUN_STATES),
    exit_code=maybe(INTEGER),
    signal=maybe(INTEGER),
    reason=maybe(TEXT),
    started_at=maybe(TIME),
    ended_at=maybe(TIME),
)
WITH_RESULT = {
    "run": maybe(record(id=TEXT, state=one_of(*RUN_STATES), exit_code=maybe(INTEGER))),
    "result": maybe(MEASURED),
    "digests": maybe(DIGESTS),
    "receipt": maybe(record(verdict=one_of(*VERDICTS), reasons=many(TEXT))),
}
EVALUATED: tuple[Schema, Schema] = ({"plan": maybe(PLAN)}, WITH_RESULT)
EVENTS = (
    *("watching", "training", "found", "already", "gone", "torn", "staged", "launched", "result", "retry", "failed"),
    *("cleaned", "refused", "lost", "back", "warning", "ended"),
)
"""what `watch` tells, an object a line"""

DOCUMENTS: dict[str, tuple[Schema, Schema]] = {
    "status": ({"hosts": many(HOST), "runs": many(TRAINING)}, {}),
    "checkpoints": (
        {
            "run": TEXT,
            "host": TEXT,
            "root": TEXT,
            "layout": maybe(TEXT),
            "latest": FOUND,
            "candidates": many(CANDIDATE),
        },
        {},
    ),
    "staged": ({"staged": many(record(**STAGED))}, {}),
    "clean": ({"staged": many(record(**STAGED, removed=FLAG, why=maybe(TEXT)))}, {}),
    "sync-harness": (
        {
            "host": TEXT,
            "state": TEXT,
            "local": maybe(TEXT),
            "remote": maybe(TEXT),
            "base": maybe(TEXT),
            "files": many(CHANGED_FILE),
            "pushed": many(TEXT),
            "saved": maybe(TEXT),
        },
        {"pulled": many(TEXT), "conflicts": many(TEXT), "saved_here": maybe(TEXT)},
    ),
    "preflight": (
        {
            "job": TEXT,
            "host": TEXT,
            "run": maybe(TEXT),
            "checks": many(
                record(name=TEXT, state=one_of("ok", "fail", "skipped"), detail=TEXT, hint=maybe(TEXT)),
            ),
        },
        {},
    ),
    "eval-latest": EVALUATED,
    "runs": ({"runs": many(RUN), "hosts": many(record(name=TEXT, ok=FLAG, error=maybe(TEXT)))}, {}),
    "cancel": ({"run": RUN, "before": one_of(*RUN_STATES), "left": many(INTEGER)}, {}),
    "attach": EVALUATED,
    "rerun": EVALUATED,
    "logs": ({"run": RUN, "offset": COUNT}, {}),
    "watch": (
        {"event": one_of(*EVENTS), "at": TIME, "step": maybe(COUNT), "text": TEXT},
        {"host": maybe(TEXT), "checkpoint": FOUND, "counts": maybe({"type": "object"}), **WITH_RESULT},
    ),
    "result": ({"training_run": TEXT, "job": TEXT, "step": COUNT, "ended_at": TIME}, WITH_RESULT),
    "receipt": (RECEIPT, {}),
    "guard": (RECEIPT, {}),
    "results": ({"results": many(RESULT)}, {}),
    "compare": (
        {
            "a": SIDE,
            "b": SIDE,
            "items": COUNT,
            "difference": maybe(ESTIMATE),
            "verdict": maybe(one_of("better", "worse", "no_difference")),
            "mixed": FLAG,
            "needed_items": maybe(COUNT),
        },
        {},
    ),
    "report": ({"file": maybe(TEXT), "bytes": COUNT, "results": COUNT}, {}),
    "ledger-rebuild": (
        {
            "results": COUNT,
            "collected": many(record(host=TEXT, id=TEXT)),
            "unreachable": many(record(host=maybe(TEXT), error=TEXT)),
        },
        {},
    ),
}
"""command -> (keys that are always there unless it failed, keys that are there once it got that far); `result` is what
hooks are told"""
NAMES = tuple(DOCUMENTS)


def document_schema(name: str) -> Schema:
    """JSON Schema (draft 2020-12) of one command's document. Raises ConfigError for a command that has none."""
    if name not in DOCUMENTS:
        raise ConfigError(f"no schema {name!r}; known: {', '.join(DOCUMENTS)}")
    always, later = DOCUMENTS[name]
    common = record(schema={"type": "integer", "minimum": 1}, command={"const": name}, warnings=many(TEXT))
    return {
        "$schema": DIALECT,
        "title": f"orch {name} --json",
        **common,
        "properties": {**common["properties"], "error": ERROR, **always, **later},
        "if": {"not": {"required": ["error"]}},
        "then": {"required": list(always)},
    }
