"""The receipt of eval-latest: what happens to training while its checkpoint is shipped and evaluated.

No torch here: the checkpoint is written by hand, and the harness is a script of two lines.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from desk import Desk
from world import wait_until

from orchestrator.reports.schema import document_schema

SIZE = 1_500_000
"""bytes of the weights; at 500 kB a second their shipment takes some seconds"""
JOB = """\
harness: {local: harness, remote: REMOTE}
checkpoint: {ship: model}
command: ["{python}", evaluate.py, "{checkpoint}", "{result}"]
result: {file: result.json, headline: score}
"""


class Evaluating(Desk):
    """With a checkpoint on the training box, an evaluation box and a job."""

    def set_out(self) -> None:
        self.furnish("box")
        evaluate, checkpoint = self.folder / "eval-box", self.folder / "box" / "checkpoints" / "checkpoint-40"
        for folder in (evaluate, checkpoint, self.folder / "harness", self.folder / "jobs"):
            folder.mkdir(parents=True)
        header = json.dumps({"w": {"dtype": "F32", "shape": [SIZE // 4], "data_offsets": [0, SIZE]}}).encode()
        weights = checkpoint / "model.safetensors"
        weights.write_bytes(len(header).to_bytes(8, "little") + header + os.urandom(SIZE))
        (checkpoint / "config.json").write_text("{}")
        (checkpoint / "trainer_state.json").write_text('{"global_step": 40}')
        for path in (*checkpoint.iterdir(), checkpoint, checkpoint.parent):
            os.utime(path, (1_790_000_000, 1_790_000_000))
        script = "import json, sys\njson.dump({'score': 1.5}, open(sys.argv[2], 'w'))\n"
        (self.folder / "harness" / "evaluate.py").write_text(script)
        (self.folder / "jobs" / "tiny.yaml").write_text(JOB.replace("REMOTE", str(evaluate / "harness")))
        hosts = self.folder / "hosts.yaml"
        box = f"  eval-box: {{roles: [eval], transport: local, root: {evaluate}, python: {sys.executable}}}\n"
        text = hosts.read_text().replace("hosts:\n", f"hosts:\n{box}")
        where = f"checkpoints: {checkpoint.parent}, limit_rate: 500KB, log"
        hosts.write_text(text.replace("checkpoints: /nowhere, log", where).replace("{sample", "{poll: 200ms, sample"))

    def shipping(self) -> subprocess.Popen[str]:
        """`orch eval-latest`, in the middle of its shipment."""
        typed = self.start("eval-latest", "--json")
        arriving = self.folder / "eval-box" / "orch" / "checkpoints"
        wait_until(lambda: typed.poll() is not None or any(arriving.glob(".incoming-*/*")), 60)
        assert typed.poll() is None, typed.communicate()
        return typed


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Evaluating]:
    desk = Evaluating(tmp_path)
    desk.set_out()
    yield desk
    desk.clear()


def test_a_training_left_alone_is_undisturbed_and_the_whole_receipt_is_kept(desk: Evaluating) -> None:
    report = desk.json("eval-latest", "--json")
    assert report["receipt"]["verdict"] == "undisturbed", report["receipt"]
    kept = desk.json("receipt", report["run"]["id"][:8], "--json")
    assert (kept["kind"], kept["step"], kept["exit_code"]) == ("evaluation", 40, 0)
    assert [window["doing"] for window in kept["windows"]] == ["observe", "ship", "collect"]
    ship = kept["windows"][1]
    assert ship["measured"]["seconds"] > 1 and len(ship["samples"]) >= 2, "sampled while it shipped"
    assert ship["measured"]["steps"] > 10
    assert desk.json("receipt", f"eval-box/{kept['id']}", "--json")["file"] == kept["file"]
    again = desk.orch("eval-latest")
    assert again.returncode == 0 and "training: undisturbed: same process" in again.stdout


@pytest.mark.parametrize(("number", "told"), [(signal.SIGKILL, "it was killed"), (signal.SIGSTOP, "to stopped")])
def test_a_training_disturbed_while_its_checkpoint_is_shipped_is_exit_9(
    desk: Evaluating, number: signal.Signals, told: str
) -> None:
    typed = desk.shipping()
    desk.trainings["box"].send_signal(number)
    out, err = typed.communicate(timeout=90)
    document = json.loads(out)
    jsonschema.validate(document, document_schema("eval-latest"))
    assert (typed.returncode, document["receipt"]["verdict"]) == (9, "changed"), err
    assert "while orch did `ship` on box" in document["receipt"]["reasons"][0]
    assert told in document["receipt"]["reasons"][0]
    assert document["result"]["headline"]["value"] == 1.5, "the result is there all the same"


def test_a_training_that_dies_long_after_shipping_has_ended_though_the_clock_was_set_back(desk: Evaluating) -> None:
    assert desk.orch("eval-latest", "--detach").returncode == 0
    (spec,) = (desk.folder / "eval-box" / "orch" / "runs").glob("*/spec.json")
    wait_until(spec.with_name("exit.json").exists, 60)
    document = json.loads(spec.read_text())
    for window in document["windows"]:  # as if it had been an hour ago, by a clock that then was two hours ahead
        for sample in (window["before"], *window["samples"], window["after"]):
            sample["monotonic"] -= 3600
            sample["at"] = f"2999{sample['at'][4:]}"
    spec.write_text(json.dumps(document))
    desk.trainings["box"].kill()
    desk.trainings["box"].wait()
    report = desk.json("eval-latest", "--json")
    assert report["receipt"]["verdict"] == "ended", report["receipt"]


def test_a_damaged_spec_costs_the_receipt_and_not_the_result(desk: Evaluating) -> None:
    assert desk.orch("eval-latest", "--detach").returncode == 0
    (spec,) = (desk.folder / "eval-box" / "orch" / "runs").glob("*/spec.json")
    wait_until(spec.with_name("exit.json").exists, 60)
    document = json.loads(spec.read_text())
    spec.write_text(json.dumps({**document, "windows": [{"doing": "ship", "before": 7}]}))
    report = desk.json("eval-latest", "--json")
    assert report["receipt"]["verdict"] == "not_observed" and report["result"]["headline"]["value"] == 1.5


def test_a_training_that_began_before_the_evaluation_did_was_not_observed(desk: Evaluating) -> None:
    assert desk.orch("eval-latest", "--detach").returncode == 0
    (started,) = (desk.folder / "eval-box" / "orch" / "runs").glob("*/started.json")
    wait_until(started.with_name("exit.json").exists, 60)
    (run,) = desk.json("status", "--json")["runs"]
    document = json.loads(started.read_text())
    started.write_text(json.dumps({**document, "beside": [run["name"], "nobody's", 7]}))
    report = desk.json("eval-latest", "--json")
    assert report["receipt"]["verdict"] == "not_observed"
    assert any("it began after the evaluation was asked for" in one for one in report["receipt"]["reasons"])


def test_of_an_evaluation_that_failed_the_receipt_is_kept_too(desk: Evaluating) -> None:
    (desk.folder / "harness" / "evaluate.py").write_text("raise SystemExit(3)\n")
    report = desk.json("eval-latest", "--json", code=8)
    kept = desk.json("receipt", "latest", "--json")
    assert (kept["id"], kept["exit_code"], kept["verdict"]) == (report["run"]["id"], 3, "undisturbed")


def test_an_evaluation_beside_the_training_is_a_window_too(desk: Evaluating) -> None:
    hosts = desk.folder / "hosts.yaml"
    hosts.write_text(hosts.read_text().replace("box: {roles: [train]", "box: {roles: [train, eval]"))
    words = ("eval-latest", "--allow-on-training-host", "--host", "box", "--json")
    report = desk.json(*words)
    assert report["receipt"]["verdict"] == "undisturbed", report["receipt"]
    kept = desk.json("receipt", "latest", "--json")
    assert [window["doing"] for window in kept["windows"]] == ["observe", "ship", "evaluate", "collect", "collect"]
    (evaluate,) = (window for window in kept["windows"] if window["doing"] == "evaluate")
    assert evaluate["measured"]["steps"] > 0
    (desk.folder / "harness" / "evaluate.py").write_text(
        "import json, os, signal, sys\n"
        f"os.kill({desk.trainings['box'].pid}, signal.SIGKILL)\n"
        "json.dump({'score': 1.5}, open(sys.argv[2], 'w'))\n"
    )
    report = desk.json(*words, code=9)
    assert "while orch did `evaluate` on box" in report["receipt"]["reasons"][0]
