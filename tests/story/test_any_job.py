"""A job that has nothing to do with DFlash, from its first evaluation to the report: a script that writes a number."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCORE = """\
import json, sys
from pathlib import Path
step = float(Path(sys.argv[1]).read_bytes()[-4:].decode())
errors = [{"id": f"q{n}", "error": 1 / step + 0.01 * (n % 3)} for n in range(12)]
mean = sum(row["error"] for row in errors) / 12
Path(sys.argv[2]).write_text(json.dumps({"summary": {"error": mean}, "questions": errors}))
"""
JOB = """\
harness: {local: score, remote: ~/score}
checkpoint: {ship: whole}
command: ["{python}", score.py, "{checkpoint}", "{result}"]
result: {file: score.json, headline: summary.error, better: lower, items: questions, item_id: id, item_value: error}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with two boxes, which are folders here, and checkpoints of steps 10 to 30."""
    folder = tmp_path / "project"
    (folder / "jobs").mkdir(parents=True)
    (folder / "score").mkdir()
    (folder / "score" / "score.py").write_text(SCORE)
    (folder / "jobs" / "score.yaml").write_text(JOB)
    for box in ("train", "eval"):
        (tmp_path / box).mkdir()
    (folder / "hosts.yaml").write_text(
        f"hosts:\n  train: {{roles: [train], transport: local, root: {tmp_path}/train, python: {sys.executable}}}\n"
        f"  eval: {{roles: [eval], transport: local, root: {tmp_path}/eval, python: {sys.executable}}}\n"
        f"timeouts: {{poll: 200ms}}\nruns:\n  tiny: {{host: train, checkpoints: {tmp_path}/train/ckpt, job: score}}\n"
    )
    for step in (10, 20, 30):
        save(tmp_path / "train" / "ckpt", step)
    return folder


def save(root: Path, step: int) -> None:
    """A safetensors file of four bytes, which say the step."""
    folder = root / f"step_{step}"
    folder.mkdir(parents=True)
    header = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"%04d" % step)
    os.utime(folder / "model.safetensors", (1e9, 1e9))
    os.utime(folder, (1e9, 1e9))


def orch(project: Path, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "from orchestrator.cli import main; main()", *words],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT), "ORCH_HOME": str(project.parent / "state")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def document(project: Path, *words: str, code: int = 0) -> dict[str, Any]:
    found = json.loads(orch(project, *words, "--json", code=code))
    assert isinstance(found, dict)
    return found


def test_from_the_first_result_to_the_report_and_a_rebuilt_ledger(project: Path) -> None:
    for step in (10, 20, 30):
        orch(project, "eval-latest", "--yes", "--step", str(step))
    found = document(project, "compare", "latest", "step:10", "--fail-if-worse")
    assert found["verdict"] == "better" and found["difference"]["high"] < 0, "lower is better"
    assert document(project, "compare", "step:10", "latest", "--fail-if-worse", code=8)["verdict"] == "worse"
    assert "no baseline" in document(project, "compare", "latest", code=2)["error"]["message"]

    status = document(project, "status")["runs"][0]
    assert status["unevaluated"] == []
    assert [row["headline"]["value"] for row in status["evaluations"]] == pytest.approx([0.11, 0.06, 1 / 30 + 0.01])
    assert "summary.error 0.060 [" in orch(project, "status")

    note = orch(project, "report", "--markdown")
    assert "summary.error" in note and "no \\`positions\\`" in note
    orch(project, "report", "--out", "report.html")
    assert "Left out" in (project / "report.html").read_text()

    table = orch(project, "results")
    runs = project.parent / "state" / "runs" / "eval"
    assert len(list(runs.glob("*/score.json"))) == 3
    for file in ("ledger.sqlite3", *(f"runs/eval/{run.name}/orch-result.json" for run in runs.iterdir())):
        (project.parent / "state" / file).unlink()
    assert document(project, "ledger", "rebuild", "--local")["results"] == 3
    assert orch(project, "results") == table, "read again from specs and result files alone"


def test_status_remembers_what_its_host_has_forgotten(project: Path) -> None:
    orch(project, "eval-latest", "--yes")
    run = document(project, "results")["results"][0]["id"]
    (project.parent / "eval" / "orch" / "runs" / run).rename(project.parent / "elsewhere")
    status = document(project, "status")["runs"][0]
    assert status["evaluations"] == [] and status["unevaluated"] == [10, 20]


def test_a_changed_script_makes_results_that_are_not_compared(project: Path) -> None:
    orch(project, "eval-latest", "--yes", "--step", "20")
    script = project / "score" / "score.py"
    script.write_text(SCORE.replace("0.01 *", "0.02 *"))
    orch(project, "eval-latest", "--yes")
    assert document(project, "compare", "latest", "step:20", code=6)["error"]["hint"].startswith("--mixed")
    page = orch(project, "report", "--markdown")
    assert "score.py modified" in page
    orch(project, "report", "--out", "report.html")
    text = (project / "report.html").read_text()
    assert "0.01 * (n % 3)" in text and "0.02 * (n % 3)" in text, "line by line"


def test_items_that_the_result_lacks_are_a_warning_that_names_what_is_there(project: Path) -> None:
    job = project / "jobs" / "score.yaml"
    job.write_text(JOB.replace("items: questions", "items: qestions"))
    for _ in ("evaluated", "already evaluated"):
        found = document(project, "eval-latest", "--yes")
        assert found["result"]["headline"]["low"] is None
        (warning,) = [text for text in found["warnings"] if "result.items" in text]
        assert "no list at qestions" in warning and "keys there: summary, questions" in warning


def test_a_misspelt_headline_is_mended_without_a_second_evaluation(project: Path) -> None:
    job = project / "jobs" / "score.yaml"
    job.write_text(JOB.replace("summary.error", "summary.eror"))
    error = document(project, "eval-latest", "--yes", code=8)["error"]
    run = document(project, "runs")["runs"][0]["id"]
    assert f"run {run} on eval: score.json has no number at summary.eror" in error["message"]
    assert "result.headline in jobs/score.yaml; keys there: error" in error["hint"]
    assert f"orch attach {run}" in error["hint"]
    assert document(project, "status")["runs"][0]["unevaluated"] == [10, 20, 30], "a result was not read"
    assert "no result that can be read" in orch(project, "status")
    job.write_text(JOB)
    found = document(project, "attach", run)
    assert found["run"]["id"] == run and found["result"]["headline"]["name"] == "summary.error"
    assert document(project, "status")["runs"][0]["unevaluated"] == [10, 20]


def test_a_checkpoint_folder_that_is_not_there_is_a_wrong_inventory_and_an_empty_one_is_not(project: Path) -> None:
    inventory = project / "hosts.yaml"
    inventory.write_text(inventory.read_text().replace("/train/ckpt", "/train/nope"))
    for words in (("eval-latest", "--yes"), ("eval-latest", "--dry-run"), ("checkpoints",)):
        error = document(project, *words, code=2)["error"]
        assert "no such folder" in error["message"] and "nope" in error["message"] and error["host"] == "train"
        assert "`checkpoints:`" in error["hint"] and "mkdir" not in error["hint"]
    (project.parent / "train" / "nope").mkdir()
    for words in (("eval-latest", "--yes"), ("checkpoints",)):
        assert "no complete checkpoint" in document(project, *words, code=3)["error"]["message"]


def test_a_host_that_answered_and_lacks_its_python_is_not_told_as_silent(project: Path) -> None:
    inventory = project / "hosts.yaml"
    inventory.write_text(inventory.read_text().replace(f"eval, python: {sys.executable}", "eval, python: /nope/python"))
    for words in (("status",), ("runs",)):
        said = orch(project, *words, code=4)
        assert "no /nope/python there" in said and "no answer" not in said


def test_runs_are_narrowed_to_a_training_run(project: Path) -> None:
    orch(project, "eval-latest", "--yes")
    (run,) = document(project, "runs", "tiny")["runs"]
    assert run["step"] == 30 and run["id"] in orch(project, "runs", "tiny")
    error = document(project, "runs", "tny", code=2)["error"]
    assert "did you mean 'tiny'?" in error["message"] and "below runs:" in error["hint"]
    inventory = project / "hosts.yaml"
    inventory.write_text(inventory.read_text() + "  other: {host: train, checkpoints: /c, job: score}\n")
    assert document(project, "runs", "other")["runs"] == []
