"""The three commands on two local boxes, with the real trainer and the real harness."""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jsonschema
import pytest
from world import Stage, by_hand, wait_until

from orchestrator.reports.schema import document_schema


class Healthy(http.server.BaseHTTPRequestHandler):
    """A reference server that is there."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


SAME = ("acceptance_length", "positions", "ddtree")


def files_below(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(p.relative_to(folder)): (p.stat().st_size, p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()
    }


@pytest.fixture
def live(stage: Stage) -> int:
    """The pid of the live training."""
    return stage.start_training()


def test_the_whole_story(stage: Stage, live: int) -> None:
    status = stage.json("status")
    jsonschema.validate(status, document_schema("status"))
    run = status["runs"][0]
    assert run["process"]["pid"] == live and run["process"]["state"] == "running"
    assert run["progress"]["step"] > 0 and run["progress"]["rate_unit"] == "tok/s"
    assert run["latest"]["step"] == 120 and run["unevaluated"] == [40, 80, 120]
    assert run["harness"] == "unknown"
    assert {entry["kind"] for entry in run["remote_folder"]} >= {"cache", "checkpoint"}

    report = stage.json("eval-latest", "--yes")
    jsonschema.validate(report, document_schema("eval-latest"))
    assert [action["do"] for action in report["plan"]["actions"]] == ["sync", "ship", "launch"]
    assert report["run"]["state"] == "succeeded"
    assert report["receipt"]["verdict"] == "undisturbed", report["receipt"]
    kept = stage.json("receipt", "latest")
    assert kept["id"] == report["run"]["id"] and kept["reasons"] == report["receipt"]["reasons"]
    ship = next(window for window in kept["windows"] if window["doing"] == "ship")
    assert ship["measured"]["steps"] is not None and ship["gaps"] == []
    assert report["result"]["verdict"] == "better", "120 steps against the baseline of 40"
    result = json.loads(Path(report["result"]["file"]).read_text())
    hand = by_hand(stage, stage.train / "checkpoints" / "step_120", stage.folder / "by_hand.json")
    assert {key: result[key] for key in SAME} == {key: hand[key] for key in SAME}
    assert report["result"]["headline"]["value"] == hand["acceptance_length"]["walk_macro"]

    again = stage.json("eval-latest")
    assert [action["do"] for action in again["plan"]["actions"]] == ["nothing"]
    assert again["result"]["headline"] == report["result"]["headline"]
    after = stage.json("status")["runs"][0]
    assert after["process"] == run["process"], "the same process, since the same time"
    assert after["progress"]["step"] > run["progress"]["step"]
    assert after["harness"] == "in_sync" and after["unevaluated"] == [40, 80]
    assert [(row["step"], row["state"]) for row in after["evaluations"]] == [(120, "succeeded")]


@pytest.mark.full
def test_an_earlier_step_can_be_named_and_stands_in_the_table_beside_the_latest(stage: Stage) -> None:
    assert stage.orch("eval-latest", "--yes").returncode == 0
    earlier = stage.orch("eval-latest", "--step", "80")
    assert earlier.returncode == 0, earlier.stderr
    *table, training = earlier.stdout.splitlines()[1:]
    assert [line.split()[0] for line in table] == ["80", "120"]
    assert "not_observed" in table[0] and training.startswith("training: not_observed: no training process was seen")


def test_a_dry_run_changes_nothing_anywhere(stage: Stage) -> None:
    before = files_below(stage.train), files_below(stage.remote_harness)
    report = stage.json("eval-latest", "--dry-run", "--yes")
    assert [action["do"] for action in report["plan"]["actions"]] == ["sync", "ship", "launch"]
    assert (files_below(stage.train), files_below(stage.remote_harness)) == before
    assert not (stage.evaluate / "orch" / "checkpoints").exists()
    assert not (stage.evaluate / "orch" / "runs").exists()


def test_a_drifted_harness_without_consent_stops_everything(stage: Stage) -> None:
    before = files_below(stage.remote_harness)
    report = stage.json("eval-latest", code=6)
    assert report["error"]["code"] == 6 and "--yes" in report["error"]["hint"]
    assert files_below(stage.remote_harness) == before
    assert not (stage.evaluate / "orch" / "checkpoints").exists()


def test_sync_harness_shows_the_drift_saves_it_and_mends_it(stage: Stage) -> None:
    check = stage.orch("sync-harness", "--check")
    assert check.returncode == 1 and "-# edited on the box" in check.stdout
    assert stage.orch("sync-harness").returncode == 6
    report = stage.json("sync-harness", "--yes")
    jsonschema.validate(report, document_schema("sync-harness"))
    assert report["state"] == "unknown" and report["pushed"] == ["eval_drafter.py"]
    assert Path(report["saved"], "eval_drafter.py").read_text().endswith("# edited on the box\n")
    assert stage.orch("sync-harness", "--check").returncode == 0
    assert stage.json("sync-harness")["state"] == "in_sync"


def test_after_a_sync_a_local_change_needs_no_consent_and_a_remote_one_does(stage: Stage) -> None:
    assert stage.orch("sync-harness", "--yes").returncode == 0
    with (stage.project / "harness" / "table.py").open("a") as file:
        file.write("# newer\n")
    assert stage.json("sync-harness")["state"] == "local_ahead"
    with (stage.remote_harness / "table.py").open("a") as file:
        file.write("# there\n")
    assert stage.json("sync-harness", code=6)["state"] == "remote_edited"


def test_a_preflight_tries_the_real_harness_on_the_real_checkpoint_and_leaves_nothing(stage: Stage) -> None:
    refused = stage.json("preflight", code=6)
    assert [check["name"] for check in refused["checks"] if check["state"] == "fail"] == ["harness"]
    assert stage.orch("sync-harness", "--take-local").returncode == 0
    before = files_below(stage.evaluate)
    report = stage.json("preflight")
    jsonschema.validate(report, document_schema("preflight"))
    checks = {check["name"]: check for check in report["checks"]}
    assert {check["state"] for check in report["checks"]} == {"ok"}
    assert "fits its configuration" in checks["tensors"]["detail"] and checks["import torch"]["detail"][0].isdigit()
    assert "--drafter" in checks["options"]["detail"] and report["run"] == "dflash"
    assert files_below(stage.evaluate) == before
    job = stage.project / "jobs" / "eval-dflash.yaml"
    job.write_text(job.read_text().replace("--budgets", "--budgest"))
    wrong = [check["detail"] for check in stage.json("preflight", code=6)["checks"] if check["state"] == "fail"]
    assert wrong == ["eval_drafter.py does not know --budgest"]


def test_a_detached_run_is_joined_by_the_same_command(stage: Stage) -> None:
    detached = stage.json("eval-latest", "--yes", "--detach")
    assert detached["run"]["state"] == "running" and "result" not in detached
    joined = stage.json("eval-latest")
    assert joined["run"]["id"] == detached["run"]["id"]
    assert joined["run"]["state"] == "succeeded"
    assert joined["plan"]["actions"][0]["do"] in ("join", "nothing")


def test_ctrl_c_leaves_the_run_going(stage: Stage) -> None:
    command = [sys.executable, "-c", "from orchestrator.cli import main; main()", "eval-latest", "--yes"]
    typed = subprocess.Popen(
        command, cwd=stage.project, env=stage.variables(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    runs = stage.evaluate / "orch" / "runs"
    wait_until(lambda: any(runs.glob("*/started.json")), 60)
    wait_until(lambda: any((stage.folder / "state").rglob("launched.json")), 60)
    time.sleep(0.5)  # it was remembered, and is said next
    typed.send_signal(signal.SIGINT)
    _, said = typed.communicate(timeout=30)
    assert typed.returncode == 130
    assert "to come back: orch eval-latest dflash --step 120" in said
    wait_until(lambda: any(runs.glob("*/exit.json")), 150)
    report = stage.json("eval-latest")
    assert report["run"]["state"] == "succeeded" and len(list(runs.iterdir())) == 1


def test_a_failing_evaluation_says_how_it_failed(stage: Stage) -> None:
    script = stage.project / "harness" / "eval_drafter.py"
    script.write_text("import sys; print('no luck'); sys.exit(3)\n")
    report = stage.json("eval-latest", "--yes", code=8)
    assert report["run"]["state"] == "failed" and report["run"]["exit_code"] == 3
    assert "exit code 3" in report["error"]["message"] or "exit 3" in report["error"]["message"]


def test_nothing_complete_lists_every_candidate_and_does_nothing(stage: Stage) -> None:
    for step in ("step_40", "step_80", "step_120"):
        file = stage.train / "checkpoints" / step / "checkpoint.pt"
        file.write_bytes(file.read_bytes()[:-100])
    report = stage.json("eval-latest", "--yes", code=3)
    assert report["plan"]["checkpoint"] is None
    assert "step_80/checkpoint.pt: torn" in report["error"]["message"]
    assert not (stage.evaluate / "orch" / "checkpoints").exists()


def test_a_torn_newest_checkpoint_is_passed_over(stage: Stage) -> None:
    file = stage.train / "checkpoints" / "step_120" / "checkpoint.pt"
    file.write_bytes(file.read_bytes()[:-1])
    os.utime(file, (1, 1))
    status = stage.json("status")["runs"][0]
    assert status["latest"]["step"] == 80
    assert status["skipped"][0]["path"] == "step_120/checkpoint.pt"


def test_missing_data_is_refused_before_anything_is_shipped(stage: Stage) -> None:
    (stage.remote_harness / "baseline").rename(stage.remote_harness / "elsewhere")
    report = stage.json("eval-latest", "--yes", code=6)
    assert "baseline" in report["plan"]["refused"][0]["reason"]
    assert not (stage.evaluate / "orch" / "checkpoints").exists()


def test_training_that_ends_by_itself_is_said_and_is_no_failure(stage: Stage, live: int) -> None:
    assert stage.orch("eval-latest", "--yes", "--detach").returncode == 0
    spec = next((stage.evaluate / "orch" / "runs").glob("*/spec.json"))
    document = json.loads(spec.read_text())
    for window in document["windows"]:  # as if the shipping had been an hour ago
        for sample in (window["before"], *window["samples"], window["after"]):
            sample["monotonic"] -= 3600
    spec.write_text(json.dumps(document))
    os.kill(live, signal.SIGTERM)
    wait_until(lambda: not Path(f"/proc/{live}").exists() or b"Z" in Path(f"/proc/{live}/stat").read_bytes(), 20)
    report = stage.json("eval-latest")
    assert report["receipt"]["verdict"] == "ended"
    kept = stage.json("receipt", report["run"]["id"])
    jsonschema.validate(kept, document_schema("receipt"))
    assert kept["verdict"] == "ended"
    assert [window["doing"] for window in kept["windows"]] == ["observe", "ship", "observe", "collect"]


def test_training_that_dies_right_after_shipping_is_exit_9(stage: Stage, live: int) -> None:
    assert stage.orch("eval-latest", "--yes", "--detach").returncode == 0
    os.kill(live, signal.SIGKILL)
    report = stage.json("eval-latest", code=9)
    assert report["receipt"]["verdict"] == "changed"


@pytest.mark.full
def test_an_evaluation_beside_a_training_is_refused_unless_allowed(stage: Stage, live: int) -> None:
    text = (stage.project / "hosts.yaml").read_text().replace("roles: [train]", "roles: [train, eval]")
    (stage.project / "hosts.yaml").write_text(text)
    report = stage.json("eval-latest", "--yes", "--host", "train-box", "--dry-run", code=6)
    assert any("a training runs" in refusal["reason"] for refusal in report["plan"]["refused"])
    job = stage.project / "jobs" / "eval-dflash.yaml"
    with http.server.HTTPServer(("127.0.0.1", 0), Healthy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        job.write_text(job.read_text() + f"server: http://127.0.0.1:{server.server_port}\n")
        report = stage.json("eval-latest", "--yes", "--host", "train-box", "--allow-on-training-host")
        again = ("rerun", report["run"]["id"], "--dry-run")
        assert any("a training runs" in one["reason"] for one in stage.json(*again, code=6)["plan"]["refused"])
        assert stage.json(*again, "--allow-on-training-host")["plan"]["refused"] == []
        server.shutdown()
    (why,) = [action["why"] for action in report["plan"]["actions"] if action["do"] == "launch"]
    assert "memory kept for it" in why and "is on train-box, where a training runs" in why
    assert report["run"]["state"] == "succeeded" and "beside dflash: memory, run queue" in report["run"]["held_by"]
    assert report["receipt"]["verdict"] == "undisturbed" and Path(f"/proc/{live}").exists()


def test_a_dead_host_is_a_row_and_exit_4(stage: Stage) -> None:
    text = (stage.project / "hosts.yaml").read_text()
    text = text.replace(
        "hosts:\n", f"hosts:\n  gone: {{roles: [eval], transport: local, root: {stage.folder}, python: no-python}}\n"
    )
    (stage.project / "hosts.yaml").write_text(text.replace("job: eval-dflash", "job: eval-dflash, eval_host: eval-box"))
    status = stage.json("status", code=4)
    assert {row["name"]: row["ok"] for row in status["hosts"]} == {"gone": False, "train-box": True, "eval-box": True}
    assert status["runs"][0]["latest"]["step"] == 120
