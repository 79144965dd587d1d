"""`orch results` and `orch compare` on ledgers of made-up results: names, refusals, marks, documents, exit codes."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import made_up
import pytest

from orchestrator.actions.ledger import Ledger
from orchestrator.measured import Entry
from orchestrator.reports import answers
from orchestrator.reports.envelope import document, dumped
from orchestrator.reports.schema import document_schema
from orchestrator.workflows.results import Series

ROOT = Path(__file__).parents[2]
Typed = subprocess.CompletedProcess[str]


def orch(home: Path, *words: str, **environment: str) -> Typed:
    """A command typed in an empty folder: there is no hosts.yaml, and none is needed."""
    return subprocess.run(
        [sys.executable, "-c", "from orchestrator.cli import main; main()", *words],
        cwd=home.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), "ORCH_HOME": str(home), "PYTHONIOENCODING": "utf-8", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def answer(home: Path, *words: str, code: int = 0) -> dict[str, Any]:
    """The document of a command that ends with this exit code; it fits its schema."""
    done = orch(home, *words, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    found = json.loads(done.stdout)
    jsonschema.validate(found, document_schema(words[0]))
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight checkpoints; the harness changed after the first two."""
    folder = tmp_path_factory.mktemp("laptop") / "state"
    made_up.fill_run(folder, 8, change_at=0.25)
    return folder


# -- results -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 0.1 + 0.2, 3.0, -1e308, math.inf, math.nan])
@pytest.mark.parametrize("text", ["plain", 'a "quoted" %s {name} \\ \n', "Ünïcode \u2028 \U0001f600"])
def test_a_row_of_results_is_the_json_of_its_line(value: float | None, text: str) -> None:
    rest = {"step": 7, "verdict": None, "value": value, "low": None, "high": value, "base_value": None}
    entry = Entry(**{**dict.fromkeys(Entry._fields, text), **rest})
    series = Series(entries=(entry, entry), values=(), count=2, first_step=7)
    found = json.loads(dumped(document("results", answers.results_body([series]))))
    number = value if value is not None and math.isfinite(value) else None
    digests = dict.fromkeys(("checkpoint", "harness", "job", "data"), text)
    row = {**dict.fromkeys(("id", "run", "job", "host", "origin", "receipt", "ended_at"), text), "step": 7}
    headline = None if value is None else {"name": text, "value": number, "low": None, "high": number}
    assert (
        found["results"] == [{**row, "headline": headline, "baseline": None, "verdict": None, "digests": digests}] * 2
    )


def test_results_shows_the_curve_and_marks_what_another_harness_measured(home: Path) -> None:
    lines = orch(home, "results", "dflash").stdout.splitlines()
    assert lines[0].startswith("dflash  acceptance_length.walk_macro")
    assert lines[1].startswith("▁") and "█" in lines[1] and lines[1].endswith("step 500 to 4000")
    steps = [line.split()[0] for line in lines[3:]]
    assert steps == [str(500 * n) for n in range(1, 9)]
    assert [line.endswith("other harness") for line in lines[3:]] == [True] * 2 + [False] * 6


def test_results_are_documents_and_comma_separated_too(home: Path) -> None:
    document = answer(home, "results")
    assert [row["step"] for row in document["results"]] == [500 * n for n in range(1, 9)]
    assert document["results"][-1]["headline"]["low"] < document["results"][-1]["headline"]["value"]
    rows = list(csv.DictReader(orch(home, "results", "--csv").stdout.splitlines()))
    assert [row["id"] for row in rows] == [row["id"] for row in document["results"]]
    assert float(rows[0]["value"]) == document["results"][0]["headline"]["value"]
    assert [row["step"] for row in answer(home, "results", "--last", "2")["results"]] == [3500, 4000]


def test_a_terminal_without_utf_8_gets_an_ascii_curve(home: Path) -> None:
    lines = orch(home, "results", PYTHONIOENCODING="ascii").stdout.splitlines()
    assert lines[1].startswith("_") and lines[1].isascii()


def test_a_run_without_results_is_told_with_those_that_have_some(home: Path) -> None:
    found = answer(home, "results", "dflsh", code=2)
    assert "dflash" in found["error"]["hint"]


def test_an_empty_ledger_is_no_failure_and_says_what_to_type(tmp_path: Path) -> None:
    found = answer(tmp_path / "state", "results")
    assert found["results"] == [] and "orch eval-latest" in found["warnings"][0]


# -- compare -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("compare", "latest"), ("report",), ("report", "dflash"), ("results", "dflash")])
def test_who_has_no_result_yet_is_told_what_makes_one(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert "orch eval-latest makes one" in answer(tmp_path / "state", *words, code=2)["error"]["hint"]


def test_the_latest_is_held_against_the_baseline_prompt_by_prompt(home: Path) -> None:
    found = answer(home, "compare", "latest")
    assert (found["verdict"], found["items"], found["b"]["baseline"]) == ("better", 80, True)
    low, high = found["difference"]["low"], found["difference"]["high"]
    assert 0 < low < found["difference"]["value"] < high
    assert found["difference"]["value"] == pytest.approx(
        found["a"]["headline"]["value"] - found["b"]["headline"]["value"]
    )
    reverse = answer(home, "compare", "baseline", "latest")
    assert reverse["verdict"] == "worse" and reverse["difference"]["value"] == -found["difference"]["value"]


def test_every_kind_of_name_means_the_same_result(home: Path) -> None:
    last = answer(home, "results")["results"][-1]["id"]
    for name in (last, last[:9], "latest", "step:4000"):
        assert answer(home, "compare", name, "step:2000")["a"]["id"] == last
    assert answer(home, "compare", "step:2000", last)["b"]["id"] == last


@pytest.mark.parametrize(
    ("name", "said"),
    [("step:77", "no result of step 77"), ("nothing", "no result 'nothing'"), ("baseline", "two baselines")],
)
def test_a_name_that_means_nothing_is_said(home: Path, name: str, said: str) -> None:
    assert said in answer(home, "compare", name, code=2)["error"]["message"]


def test_a_beginning_of_several_ids_is_said_with_all_of_them(home: Path) -> None:
    error = answer(home, "compare", "3", code=2)["error"]
    assert "3000-" in error["message"] and "3500-" in error["message"]


def test_different_harnesses_are_refused_unless_asked_for_and_marked_then(home: Path) -> None:
    refused = answer(home, "compare", "latest", "step:500", code=6)
    assert "different harness" in refused["error"]["message"] and "--mixed" in refused["error"]["hint"]
    mixed = answer(home, "compare", "latest", "step:500", "--mixed")
    assert mixed["mixed"] is True and mixed["verdict"] == "better"
    assert (
        "mixed: they were measured with different harness"
        in orch(home, "compare", "latest", "step:500", "--mixed").stdout
    )


def test_continuous_integration_fails_on_what_is_worse_alone(home: Path) -> None:
    assert orch(home, "compare", "latest", "step:1500", "--fail-if-worse").returncode == 0
    found = answer(home, "compare", "step:1500", "latest", "--fail-if-worse", code=8)
    assert found["verdict"] == "worse" and found["error"]["code"] == 8
    assert orch(home, "compare", "step:1500", "latest").returncode == 0


@pytest.mark.parametrize("words", [("results",), ("compare", "latest")])
def test_comma_separated_lines_and_a_document_exclude_each_other(home: Path, words: tuple[str, ...]) -> None:
    assert "--csv and --json" in answer(home, *words, "--csv", code=2)["error"]["message"]


def test_a_comparison_is_one_line_of_csv(home: Path) -> None:
    (row,) = csv.DictReader(orch(home, "compare", "latest", "--csv").stdout.splitlines())
    assert row["verdict"] == "better" and row["mixed"] == "false" and float(row["low"]) > 0


def test_two_equal_drafters_are_not_told_apart_and_the_prompts_that_would_do_are_named(tmp_path: Path) -> None:
    with Ledger(tmp_path / "state") as ledger:
        for step in (500, 1000):
            made_up.add(ledger, made_up.result_files(step, 3.2, made_up.SCRIPTS, prompts=60, seed=step))
    found = answer(tmp_path / "state", "compare", "latest", "step:500")
    assert found["verdict"] == "no_difference" and found["needed_items"] > 60
    assert "items would settle" in orch(tmp_path / "state", "compare", "latest", "step:500").stdout


def test_several_training_runs_must_be_told_apart(tmp_path: Path) -> None:
    home = tmp_path / "state"
    made_up.fill_run(home, 2)
    made_up.fill_index(home, 20, 2)
    error = answer(home, "compare", "latest", code=2)["error"]
    assert "run-0" in error["message"] and "--run" in error["hint"]
    assert answer(home, "compare", "latest", "--run", "dflash")["a"]["step"] == 1000


def test_without_items_there_is_a_difference_and_no_verdict(tmp_path: Path) -> None:
    with Ledger(tmp_path / "state") as ledger:
        for step in (500, 1000):
            files = made_up.result_files(step, 3 + step / 1000, made_up.SCRIPTS, prompts=4, seed=step)
            spec = json.loads(files["spec.json"])
            spec["rule"] = {"file": made_up.RULE.file, "headline": made_up.RULE.headline}
            made_up.add(ledger, {**files, "spec.json": json.dumps(spec).encode()})
    found = answer(tmp_path / "state", "compare", "latest", "step:500")
    assert found["verdict"] is None and found["difference"]["value"] > 0 and found["difference"]["low"] is None
    assert any("result.items" in warning for warning in found["warnings"])


def without_items(home: Path, **items: str) -> Path:
    """Two results whose job names these items, or none."""
    with Ledger(home) as ledger:
        for step in (500, 1000):
            files = made_up.result_files(step, 3.0, made_up.SCRIPTS, prompts=4, seed=step)
            spec = json.loads(files["spec.json"])
            spec["rule"] = {"file": made_up.RULE.file, "headline": made_up.RULE.headline, **items}
            made_up.add(ledger, {**files, "spec.json": json.dumps(spec).encode()})
    return home


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ({}, "no shared items"),
        ({"items": "promts", "item_value": "acceptance_length"}, "no list at promts (result.items); keys there:"),
        ({"items": "prompts", "item_value": "length"}, "no item of prompts has a number at length (result.item_value)"),
        ({"items": "prompts", "item_value": "acceptance_length", "item_id": "name"}, "no id of their own"),
    ],
)
def test_a_gate_that_nothing_can_be_judged_by_is_shut(tmp_path: Path, items: dict[str, str], said: str) -> None:
    home = without_items(tmp_path / "state", **items)
    found = answer(home, "compare", "latest", "step:500", "--fail-if-worse", code=8)
    assert found["verdict"] is None and found["items"] == 0
    assert "can't be judged: fewer than two shared items" in found["error"]["message"]
    assert "jobs/eval-dflash.yaml" in found["error"]["hint"]
    assert any(said in warning for warning in found["warnings"]), found["warnings"]
    shown = orch(home, "compare", "latest", "step:500")
    assert shown.returncode == 0 and "over 0 shared items" not in shown.stdout


def test_text_from_a_host_reaches_no_terminal_and_no_csv_unescaped(tmp_path: Path) -> None:
    with Ledger(tmp_path / "state") as ledger:
        files = made_up.result_files(500, 3.0, made_up.SCRIPTS, prompts=4, seed=1)
        spec = json.loads(files["spec.json"])
        spec.update(run="evil\x1b]0;title\x07", job="j\n1,2")
        made_up.add(ledger, {**files, "spec.json": json.dumps(spec).encode()})
    for words in (("results",), ("results", "--csv"), ("compare", "latest")):
        assert "\x1b]0" not in orch(tmp_path / "state", *words).stdout
    assert len(orch(tmp_path / "state", "results", "--csv").stdout.splitlines()) == 2


@pytest.mark.parametrize("name", ["=1+cmd|'/c calc'!A0", "+1", "-2+3", "@SUM(1)"])
def test_no_cell_of_a_csv_is_a_formula(tmp_path: Path, name: str) -> None:
    with Ledger(tmp_path / "state") as ledger:
        files = made_up.result_files(500, 3.0, made_up.SCRIPTS, prompts=4, seed=1)
        spec = json.loads(files["spec.json"])
        made_up.add(ledger, {**files, "spec.json": json.dumps({**spec, "run": name}).encode()})
    (row,) = csv.DictReader(orch(tmp_path / "state", "results", "--csv").stdout.splitlines())
    assert row["run"] == "'" + name and float(row["value"]) > 0
