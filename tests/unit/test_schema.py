"""JSON Schemas: for editors of the two kinds of file, and for programs that read what commands print."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from orchestrator.config.file_schema import schema
from orchestrator.errors import ConfigError
from orchestrator.reports.schema import DOCUMENTS, document_schema

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = {"hosts": REPOSITORY / "hosts.yaml", "job": REPOSITORY / "jobs/eval-dflash.yaml"}


def problems(schema: dict, document: object) -> list[str]:
    return [error.json_path for error in jsonschema.Draft202012Validator(schema).iter_errors(document)]


@pytest.mark.parametrize("name", ["hosts", "job", "config"])
def test_each_file_schema_is_a_schema(name):
    jsonschema.Draft202012Validator.check_schema(schema(name))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_fit_their_schemas(name):
    assert problems(schema(name), yaml.safe_load(EXAMPLES[name].read_text())) == []


@pytest.mark.parametrize(
    ("name", "change", "where"),
    [
        ("hosts", lambda file: file["runs"]["dflash"].update(chekpoints="/c"), "$.runs.dflash"),
        ("hosts", lambda file: file["runs"]["dflash"].pop("host"), "$.runs.dflash"),
        ("hosts", lambda file: file["runs"]["dflash"]["process"].update(pid=1), "$.runs.dflash.process"),
        ("hosts", lambda file: file["runs"]["dflash"]["gpus"].update(target="0 to 4"), "$.runs.dflash.gpus.target"),
        ("hosts", lambda file: file["hosts"]["ct200"].update(roles=["evil"]), "$.hosts.ct200.roles"),
        ("hosts", lambda file: file["hosts"]["ct200"].update(ssh="-oX"), "$.hosts.ct200.ssh"),
        ("hosts", lambda file: file["hosts"].update({"a b": {"roles": ["eval"]}}), "$.hosts"),
        ("hosts", lambda file: file["hosts"]["ct129"]["limits"].update(memory="60G"), "$.hosts.ct129.limits.memory"),
        ("job", lambda file: file.pop("harness"), "$"),
        ("job", lambda file: file.update(command="python x.py"), "$.command"),
        ("job", lambda file: file["limits"].update(wall="1:30"), "$.limits.wall"),
        ("job", lambda file: file["env"].update(TOKEN={"from": "vault", "name": "x"}), "$.env.TOKEN"),
    ],
)
def test_a_wrong_file_does_not_fit(name, change, where):
    file = yaml.safe_load(EXAMPLES[name].read_text())
    change(file)
    assert problems(schema(name), file) == [where]


def test_every_key_is_described():
    def undescribed(node: dict) -> list[str]:
        here = [name for name, value in node.get("properties", {}).items() if "description" not in value]
        children = [*node.get("properties", {}).values(), node.get("additionalProperties"), *node.get("anyOf", [])]
        return here + [name for child in children if isinstance(child, dict) for name in undescribed(child)]

    assert [name for file in ("hosts", "job", "config") for name in undescribed(schema(file))] == []


@pytest.mark.parametrize(("name", "page"), [("hosts", "hosts-yaml.md"), ("job", "job-yaml.md")])
def test_every_key_is_on_the_reference_page(name, page):
    text = (REPOSITORY / "docs" / page).read_text()

    def keys(node: dict) -> set[str]:
        children = [*node.get("properties", {}).values(), node.get("additionalProperties"), *node.get("anyOf", [])]
        found = {key for child in children if isinstance(child, dict) for key in keys(child)}
        return found | set(node.get("properties", {}))

    assert sorted(key for key in keys(schema(name)) if f"`{key}`" not in text) == []


def test_an_unknown_schema_is_told_with_those_that_are_known():
    with pytest.raises(ConfigError, match="no schema 'host'; known: hosts, job, config"):
        schema("host")
    with pytest.raises(
        ConfigError, match="no schema 'state'; known: status, checkpoints, staged, clean, sync-harness, "
    ):
        document_schema("state")


COMMON = {"schema": 1, "warnings": []}
STAGED = {
    "host": "ct129",
    "identity": "x",
    "step": 4000,
    "bytes": 1,
    "path": "/root/orch/checkpoints/x",
    "source": "ct200:/ckpt/step_4000/checkpoint.pt",
    "staged_at": "2026-11-30T12:00:00Z",
    "state": "complete",
    "used_by": [],
}
SAMPLE = {"at": "2026-11-30T12:00:00Z", "state": "running", "identity": {"pid": 7}, "hidden": []}
RECEIPT = {
    "verdict": "changed",
    "reasons": ["it was killed"],
    "windows": [
        {
            "doing": "ship",
            "host": "ct200",
            "from": "2026-11-30T12:00:00Z",
            "to": None,
            "before": SAMPLE,
            "after": None,
            "samples": [SAMPLE],
        }
    ],
    "limits": ["the box hides: io"],
    "hosts": [{"host": "ct200", "verdict": "changed", "reasons": []}],
    "id": "4000-abc",
    "kind": "evaluation",
    "run": "dflash",
    "step": 4000,
    "exit_code": 0,
    "ended_at": "2026-11-30T12:00:00Z",
    "file": "/state/runs/ct129/4000-abc/receipt.json",
}
SIDE = {
    "id": "4000-ab12cd34",
    "baseline": False,
    "run": "dflash",
    "step": 4000,
    "headline": {"value": 3.2, "low": None, "high": None},
    "digests": {"checkpoint": "a", "harness": "b", "job": "c", "data": "d"},
}
RUN = {
    "id": "4000-ab12cd34",
    "job": "eval-dflash",
    "host": "ct129",
    "run": "dflash",
    "step": 4000,
    "state": "lost",
    "exit_code": None,
    "signal": None,
    "reason": "the host was restarted",
    "started_at": "2026-11-30T12:00:00Z",
    "ended_at": None,
}
DOCUMENT = {
    "status": {
        "hosts": [
            {
                "name": "ct200",
                "ok": True,
                "error": None,
                "transport": "fabric",
                "cpus": 64,
                "load": 3.5,
                "memory": {"total": 10, "available": 5},
                "disk": {"path": "/workspace", "total": 10, "free": 5},
                "gpus": [
                    {
                        "index": 0,
                        "name": "H200",
                        "role": "target",
                        "utilisation": 99,
                        "memory_used": 1,
                        "memory_total": 2,
                        "clients": [42639],
                    }
                ],
            }
        ],
        "runs": [
            {
                "name": "dflash",
                "host": "ct200",
                "process": {"state": "running", "pid": 42639, "started_at": "2026-11-30T10:00:00Z", "user": "root"},
                "progress": {
                    "step": 5296,
                    "epoch": 1.04,
                    "loss": 2.31,
                    "rate": 19500.0,
                    "rate_unit": "tok/s",
                    "age_s": 1.2,
                    "stalled": False,
                },
                "latest": {"path": "step_4000/checkpoint.pt", "step": 4000, "bytes": 3, "age_s": 60.0},
                "steps_behind": 1296,
                "next_checkpoint_in_s": None,
                "skipped": [{"path": "step_6000/checkpoint.pt", "reason": "being written"}],
                "harness": "in_sync",
                "evaluations": [{"id": "a", "step": 2000, "state": "succeeded"}],
                "unevaluated": [4000],
                "remote_folder": [{"path": "x", "kind": "other", "bytes": 1, "modified_at": None, "headline": None}],
            }
        ],
    },
    "checkpoints": {
        "run": "dflash",
        "host": "ct200",
        "root": "/c",
        "layout": "step-folders",
        "latest": {"path": "step_4000/checkpoint.pt", "step": 4000, "bytes": 3, "ship_bytes": 1, "identity": "x"},
        "candidates": [{"path": "step_6000", "step": 6000, "state": "torn", "reason": "cut"}],
    },
    "staged": {"staged": [STAGED]},
    "clean": {"staged": [{**STAGED, "removed": True, "why": None}]},
    "sync-harness": {
        "host": "ct129",
        "state": "in_sync",
        "local": "a",
        "remote": None,
        "base": None,
        "files": [{"path": "eval_drafter.py", "change": "modified", "side": "both"}],
        "pushed": [],
        "saved": None,
    },
    "preflight": {
        "job": "eval-dflash",
        "host": "ct129",
        "run": "dflash",
        "checks": [{"name": "import torch", "state": "fail", "detail": "No module named 'torch'", "hint": None}],
    },
    "receipt": RECEIPT,
    "guard": {**RECEIPT, "kind": "guard"},
    "results": {
        "results": [
            {
                "id": "4000-ab12cd34",
                "run": "dflash",
                "job": "eval-dflash",
                "host": "ct129",
                "step": 4000,
                "headline": {"name": "acceptance_length.walk_macro", "value": 3.2, "low": 3.1, "high": 3.3},
                "baseline": None,
                "verdict": None,
                "digests": {"checkpoint": "a", "harness": "b", "job": "c", "data": "d"},
                "receipt": "undisturbed",
                "ended_at": "2026-11-30T12:00:00Z",
            }
        ]
    },
    "compare": {
        "a": SIDE,
        "b": {**SIDE, "baseline": True, "step": None},
        "items": 80,
        "difference": {"value": 0.1, "low": -0.1, "high": 0.3},
        "verdict": "no_difference",
        "mixed": False,
        "needed_items": 400,
    },
    "report": {"file": None, "bytes": 1000, "results": 8},
    "ledger-rebuild": {
        "results": 8,
        "collected": [{"host": "ct129", "id": "4000-ab12cd34"}],
        "unreachable": [{"host": None, "error": "no answer"}],
    },
    "eval-latest": {
        "plan": {
            "checkpoint": None,
            "actions": [{"do": "ship", "why": "not there", "bytes": 1, "route": None}],
            "refused": [{"reason": "full", "hint": ""}],
        }
    },
    "attach": {"plan": {"checkpoint": None, "actions": [], "refused": []}},
    "rerun": {"plan": None},
    "runs": {"runs": [RUN], "hosts": [{"name": "ct200", "ok": False, "error": "no answer"}]},
    "cancel": {"run": RUN, "before": "running", "left": []},
    "logs": {"run": RUN, "offset": 10},
    "watch": {
        "event": "found",
        "at": "2026-11-30T12:00:00Z",
        "step": 4000,
        "text": "step 4000 is complete",
        "checkpoint": {"path": "step_4000/checkpoint.pt", "step": 4000, "bytes": 3, "ship_bytes": 1, "identity": "x"},
    },
    "result": {"training_run": "dflash", "job": "eval-dflash", "step": 4000, "ended_at": "2026-11-30T12:00:00Z"},
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_documents_of_the_contract_fit(name):
    jsonschema.Draft202012Validator.check_schema(document_schema(name))
    assert problems(document_schema(name), {**COMMON, "command": name, **DOCUMENT[name]}) == []
    assert problems(document_schema(name), {**COMMON, "command": name, **DOCUMENT[name], "later": 1}) == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_without_its_keys_must_say_why(name):
    bare = {**COMMON, "command": name}
    assert problems(document_schema(name), bare)
    failed = {**bare, "error": {"code": 4, "message": "no answer", "hint": "ssh ct200 true", "host": "ct200"}}
    assert problems(document_schema(name), failed) == []
    assert problems(document_schema(name), {**failed, "error": {"code": 77}}) != []
    for key in ("schema", "command", "warnings"):
        assert problems(document_schema(name), {k: v for k, v in failed.items() if k != key}) == ["$"]


def test_a_finished_evaluation_fits():
    finished = {
        **COMMON,
        "command": "eval-latest",
        **DOCUMENT["eval-latest"],
        "run": {"id": "a", "state": "succeeded", "exit_code": 0},
        "result": {
            "file": "/x/eval_results.json",
            "headline": {"name": "acceptance_length.walk_macro", "value": 3.2, "low": 3.1, "high": 3.3},
            "baseline": {"value": 3.0, "low": None, "high": None},
            "verdict": "better",
        },
        "digests": {"checkpoint": "a", "harness": "b", "job": "c", "data": "d"},
        "receipt": {"verdict": "undisturbed", "reasons": []},
    }
    assert problems(document_schema("eval-latest"), finished) == []
    finished["receipt"]["verdict"] = "fine"
    assert len(problems(document_schema("eval-latest"), finished)) == 1
