"""Answers over time from real evaluations: the real trainer's checkpoints, measured by the real harness."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from world import Stage, run_python

from orchestrator.reports.schema import document_schema

SPOIL = """
import sys, torch
source, target, step, amount = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
document = {**torch.load(source, weights_only=False), "step": step}
torch.manual_seed(0)
def spoiled(value):
    if isinstance(value, dict):
        return {key: spoiled(item) for key, item in value.items()}
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim > 1:
        return value + amount * value.std() * torch.randn_like(value)
    return value
torch.save(spoiled(document), target)
"""


def spoil(stage: Stage, step: int, amount: float) -> None:
    """A checkpoint with the weights of step 120 and noise of so many standard deviations in them."""
    folder = stage.train / "checkpoints" / f"step_{step}"
    folder.mkdir()
    source, target = folder.parent / "step_120" / "checkpoint.pt", folder / "checkpoint.pt"
    run_python("-c", SPOIL, str(source), str(target), str(step), str(amount))


def compare(stage: Stage, *words: str, code: int = 0) -> dict[str, Any]:
    found = stage.json("compare", *words, code=code)
    jsonschema.validate(found, document_schema("compare"))
    return found


@pytest.mark.full
@pytest.mark.timeout(400)  # four evaluations, which yield to everything else on this machine
def test_a_worse_checkpoint_is_found_worse_and_equal_ones_are_not_told_apart(stage: Stage) -> None:
    spoil(stage, 160, 1.0)
    spoil(stage, 200, 1e-4)
    for step in ("40", "120", "160", "200"):
        assert stage.orch("eval-latest", "--yes", "--step", step).returncode == 0
    worse = compare(stage, "step:160", "step:120", "--fail-if-worse", code=8)
    assert worse["verdict"] == "worse" and worse["difference"]["high"] < 0 and worse["items"] > 3
    assert compare(stage, "step:120", "step:160", "--fail-if-worse")["verdict"] == "better"

    same = compare(stage, "step:40", "baseline")  # the baseline is a copy of step 40
    assert same["verdict"] == "no_difference" and same["difference"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    nearly = compare(stage, "latest", "step:120", "--fail-if-worse")
    assert nearly["a"]["step"] == 200 and nearly["verdict"] == "no_difference"

    rows = stage.json("results")["results"]
    assert [row["step"] for row in rows] == [40, 120, 160, 200]
    kept = json.loads(Path(stage.folder, "state", "runs", "eval-box", rows[1]["id"], "eval_results.json").read_text())
    assert rows[1]["headline"]["value"] == kept["acceptance_length"]["walk_macro"]
    theirs = kept["comparison"]
    assert compare(stage, "step:120")["difference"]["value"] == pytest.approx(theirs["difference"]["value"])
    assert rows[1]["verdict"] == theirs["verdict"], "the harness says the same of the baseline"


@pytest.mark.full
def test_a_ledger_that_was_lost_comes_back_from_the_evaluation_box_and_the_report_from_it(stage: Stage) -> None:
    for step in ("40", "80"):
        assert stage.orch("eval-latest", "--yes", "--step", step).returncode == 0
    with (stage.project / "harness" / "table.py").open("a") as file:
        file.write("# a newer harness\n")
    assert stage.orch("eval-latest", "--yes", "--step", "120").returncode == 0
    table = stage.orch("results").stdout
    assert table.count("other harness") == 2
    report = stage.orch("report", "--markdown").stdout
    assert "table.py modified" in report
    assert stage.orch("report", "--out", "before.html").returncode == 0
    page = (stage.project / "before.html").read_text()
    assert "# a newer harness" in page and "positions" in page and "trees" in page

    (stage.folder / "state" / "ledger.sqlite3").unlink()
    assert stage.json("ledger", "rebuild")["results"] == 3
    assert stage.orch("results").stdout == table
    shutil.rmtree(stage.folder / "state")
    rebuilt = stage.json("ledger", "rebuild")
    assert rebuilt["results"] == 3 and len(rebuilt["collected"]) == 3
    assert stage.orch("results").stdout == table, "nothing was trained meanwhile, so the receipts are the same too"
    assert compare(stage, "step:80", "step:40")["verdict"] in ("better", "no_difference")
    compare(stage, "latest", "step:80", code=6)
