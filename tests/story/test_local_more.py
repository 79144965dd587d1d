"""More of the local story: consent at a terminal, the reference server, any command as a job."""

import fcntl
import http.server
import json
import os
import pty
import select
import shutil
import subprocess
import sys
import termios
import threading
import time

import pytest
from world import Stage

COMMAND = "from orchestrator.cli import main; main()"
OTHER_JOB = """\
harness: {{local: other, remote: {remote}/other}}
command: ["{{python}}", measure.py, "{{checkpoint}}", "{{result}}"]
result: {{file: out.json, headline: score}}
{more}
"""
MEASURE = "import json, os, sys; json.dump({'score': os.path.getsize(sys.argv[1])}, open(sys.argv[2], 'w'))\n"


def typed(stage: Stage, answer: str, *words: str) -> tuple[int, str]:
    """Type a command at a real terminal and answer its question."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        cwd=stage.project,
        env=stage.variables(TERM="xterm"),
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # else Ctrl-C reaches nobody
    )
    os.close(follower)
    said, answered, deadline = b"", False, time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([leader], [], [], 0.2)[0]:
            try:
                piece = os.read(leader, 65536)
            except OSError:
                break
            said += piece
        if not answered and b"[y/N]" in said:
            os.write(leader, answer.encode())
            answered = True
    os.close(leader)
    return process.wait(timeout=10), said.decode(errors="replace")


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 6), ("\x04", 6), ("\x03", 130)])
def test_at_a_terminal_the_difference_is_shown_and_consent_asked_for(stage: Stage, answer: str, code: int) -> None:
    status, said = typed(stage, answer, "sync-harness")
    assert "edited on the box" in said and status == code
    mended = "edited on the box" not in (stage.remote_harness / "eval_drafter.py").read_text()
    assert mended == (code == 0)


def other_job(stage: Stage, more: str = "") -> None:
    (stage.project / "other").mkdir()
    (stage.project / "other" / "measure.py").write_text(MEASURE)
    text = OTHER_JOB.format(remote=stage.evaluate_inside, more=more)
    (stage.project / "jobs" / "other.yaml").write_text(text)


def test_any_command_that_writes_a_json_result_can_be_a_job(stage: Stage) -> None:
    other_job(stage)
    report = stage.json("eval-latest", "--job", "other")
    assert [action["do"] for action in report["plan"]["actions"]] == ["sync", "ship", "launch"]
    headline = report["result"]["headline"]
    assert headline["name"] == "score" and headline["low"] is None, "no items, no interval"
    shipped = next((stage.evaluate / "orch" / "checkpoints").glob("*/model.safetensors"))
    assert headline["value"] == shipped.stat().st_size
    assert report["result"]["baseline"] is None and report["result"]["verdict"] is None


def test_a_whole_checkpoint_reaches_a_harness_that_opens_the_file_itself(stage: Stage) -> None:
    other_job(stage, "checkpoint: {ship: whole}")
    report = stage.json("eval-latest", "--job", "other")
    original = stage.train / "checkpoints" / "step_120" / "checkpoint.pt"
    assert report["result"]["headline"]["value"] == original.stat().st_size
    shipped = next((stage.evaluate / "orch" / "checkpoints").glob("*/checkpoint.pt"))
    assert shipped.read_bytes() == original.read_bytes()


def test_the_reference_server_is_looked_for_before_anything_is_shipped(stage: Stage) -> None:
    class Healthy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Healthy)
    other_job(stage, f"server: http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    assert stage.json("eval-latest", "--job", "other", "--dry-run")["plan"]["refused"] == []
    server.shutdown()
    server.server_close()
    report = stage.json("eval-latest", "--job", "other", code=6)
    assert "reference server" in report["plan"]["refused"][0]["reason"]
    assert not (stage.evaluate / "orch" / "checkpoints").exists()


def test_a_secret_reaches_the_evaluation_and_no_file(stage: Stage) -> None:
    other_job(stage, "env: {TOKEN: {from: env, name: MY_TOKEN}}")
    script = MEASURE + "import time; assert os.environ['TOKEN'][::-1] == '1174-emases'; time.sleep(1)\n"
    (stage.project / "other" / "measure.py").write_text(script)
    done = stage.orch("eval-latest", "--job", "other", "--json", "-v", MY_TOKEN="sesame-4711")
    assert done.returncode == 0, done.stderr
    assert "sesame" not in done.stdout + done.stderr
    for folder in (stage.evaluate, stage.folder / "state"):
        for path in folder.rglob("*"):
            assert not path.is_file() or b"sesame-4711" not in path.read_bytes(), path


def test_a_result_that_is_not_json_is_a_failed_evaluation(stage: Stage) -> None:
    other_job(stage)
    (stage.project / "other" / "measure.py").write_text("import sys; open(sys.argv[2], 'w').write('{')\n")
    report = stage.json("eval-latest", "--job", "other", code=8)
    assert "not JSON" in report["error"]["message"]
    assert json.dumps(report)


def test_a_result_without_its_headline_is_a_failed_evaluation_each_time_it_is_asked_for(stage: Stage) -> None:
    other_job(stage)
    script = MEASURE.replace("'score'", "'scores'")
    (stage.project / "other" / "measure.py").write_text(script)
    for _ in range(2):
        report = stage.json("eval-latest", "--job", "other", code=8)
        assert "no number at score" in report["error"]["message"] and "scores" in report["error"]["hint"]


def slow_job(stage: Stage) -> None:
    other_job(stage)
    (stage.project / "other" / "measure.py").write_text("import time; time.sleep(4)\n" + MEASURE)


def new_checkpoint(stage: Stage) -> None:
    """What a live training does meanwhile: a newer checkpoint, and the older ones rotated away."""
    checkpoints = stage.train / "checkpoints"
    torch = pytest.importorskip("torch")
    saved = torch.load(checkpoints / "step_120" / "checkpoint.pt", weights_only=True)
    (checkpoints / "step_160").mkdir()
    torch.save({**saved, "step": 160}, checkpoints / "step_160" / "checkpoint.pt")
    for step in (40, 80, 120):
        shutil.rmtree(checkpoints / f"step_{step}")


@pytest.mark.full
def test_the_same_command_joins_its_run_although_training_has_moved_on(stage: Stage) -> None:
    slow_job(stage)
    begun = stage.json("eval-latest", "--job", "other", "--detach")
    new_checkpoint(stage)
    joined = stage.json("eval-latest", "--job", "other")
    assert joined["run"]["id"] == begun["run"]["id"] and joined["run"]["step"] == 120
    assert "step 160 is newer" in joined["plan"]["actions"][0]["why"]
    after = stage.orch("eval-latest", "--job", "other")
    assert [line.split()[0] for line in after.stdout.splitlines()[1:]] == ["120", "160", "training:"]


def test_a_result_can_be_had_after_its_checkpoint_was_rotated_away(stage: Stage) -> None:
    slow_job(stage)
    assert stage.orch("eval-latest", "--job", "other", "--detach").returncode == 0
    new_checkpoint(stage)
    report = stage.json("eval-latest", "--job", "other", "--step", "120")
    assert report["run"]["step"] == 120 and report["result"]["headline"]["value"] > 0


def test_a_detached_result_is_brought_home_by_the_next_evaluation(stage: Stage) -> None:
    other_job(stage)
    assert stage.orch("eval-latest", "--job", "other", "--detach").returncode == 0
    exits = stage.evaluate / "orch" / "runs"
    deadline = time.monotonic() + 30
    while not any(exits.glob("*/exit.json")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    new_checkpoint(stage)
    later = stage.orch("eval-latest", "--job", "other")
    assert [line.split()[0] for line in later.stdout.splitlines()[1:]] == ["120", "160", "training:"]


def test_a_secret_that_is_not_set_is_noticed_before_anything_is_done(stage: Stage) -> None:
    other_job(stage, "env: {TOKEN: {from: env, name: NOT_SET_ANYWHERE}}")
    assert "NOT_SET_ANYWHERE" in stage.json("eval-latest", "--job", "other", code=2)["error"]["message"]
    assert not (stage.evaluate / "other").exists() and not (stage.evaluate / "orch" / "runs").exists()


def test_a_usage_error_has_its_document_too(stage: Stage) -> None:
    report = stage.json("eval-latest", "--step", "many", code=2)
    assert report["command"] == "eval-latest" and "many" in report["error"]["message"]


def test_a_reader_that_has_gone_is_no_bug(stage: Stage) -> None:
    command = [sys.executable, "-c", COMMAND, "schema", "hosts"]
    process = subprocess.Popen(command, cwd=stage.project, env=stage.variables(), stdout=-1, stderr=-1)
    assert process.stdout and process.stderr
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=30) == 141 and said == b""
