"""Runs on an evaluation host: started once, detached, within limits, and honest about how they ended."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from evalhost import HARNESS, EvalHost, Line, as_nobody, processes_of, stage, wait_until, write_files
from python38 import python38

from remote_payload.agent import incarnation, launcher, limits, manifest, runs
from remote_payload.agent.errors import AgentError

ROOT = Path(__file__).parents[3]
PYTHON38 = python38()
SUCCEED = ["{python}", "eval.py", "{result}"]
SLEEP = ["{python}", "-c", "import time; time.sleep(60)"]
GREEDY = "data = bytearray(200 << 20)\nfor at in range(0, len(data), 4096): data[at] = 1\nimport time; time.sleep(60)"


def write_result(*, after: str = "") -> list[str]:
    return ["{python}", "-c", f"import sys; open(sys.argv[1], 'w').write('{{}}'); {after}", "{result}"]


def test_a_run_ends_with_its_result_and_says_how_it_was_held(eval_host: EvalHost) -> None:
    launched = eval_host.launch(SUCCEED)
    row = eval_host.end(launched["id"])
    assert launched["started"] and (row["state"], row["exit_code"], row["signal"]) == ("succeeded", 0, None)
    assert "GPUs hidden" in row["rung"] and "nice 19" in row["rung"]
    assert json.loads((eval_host.folder(row["id"]) / "eval_results.json").read_text()) == {"score": 1.5}
    assert row["started_at"] <= row["ended_at"]


def test_a_run_outlives_the_process_and_the_session_that_started_it(eval_host: EvalHost) -> None:
    args = eval_host.args(write_result(after="import time; time.sleep(1)"))
    script = (
        f"import json, os, sys; sys.path[:0] = {[str(ROOT), str(Path(__file__).parent)]!r}\n"
        "from evalhost import Line\n"
        "from remote_payload.agent import runs\n"
        "answer = runs.launch_answer(json.load(sys.stdin), Line())\n"
        "print(answer['id'], flush=True); os.kill(0, 9)\n"
    )
    parent = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(args), capture_output=True, text=True, start_new_session=True
    )
    assert parent.returncode == -signal.SIGKILL, parent.stderr
    run_id = parent.stdout.strip()
    assert eval_host.row(run_id)["state"] == "running"
    assert eval_host.end(run_id)["state"] == "succeeded"


def test_the_supervisor_has_let_go_of_every_descriptor_and_session(eval_host: EvalHost) -> None:
    run_id = eval_host.launch(SLEEP)["id"]
    wait_until(lambda: eval_host.row(run_id)["rung"])
    supervisor = json.loads((eval_host.folder(run_id) / "started.json").read_text())["pid"]
    targets = {os.readlink(link) for link in Path(f"/proc/{supervisor}/fd").iterdir()}
    assert targets == {"/dev/null"}
    assert os.getsid(supervisor) != os.getsid(0)


def test_the_same_run_is_joined_while_it_runs_and_found_when_it_has_succeeded(eval_host: EvalHost) -> None:
    first = eval_host.launch(write_result(after="import time; time.sleep(0.8)"))
    second = eval_host.launch(SUCCEED)
    assert (second["joined"], second["id"]) == (True, first["id"])
    eval_host.end(first["id"])
    third = eval_host.launch(SUCCEED)
    assert (third["already"], third["id"]) == (True, first["id"])


def test_a_failed_run_is_followed_by_a_numbered_attempt(eval_host: EvalHost) -> None:
    failed = eval_host.launch(["{python}", "-c", "raise SystemExit(3)"])
    eval_host.end(failed["id"])
    again = eval_host.launch(SUCCEED)
    assert (failed["id"], again["id"]) == ("eval-4000", "eval-4000-2")
    assert (eval_host.end(again["id"])["state"], again["run"]["attempt"]) == ("succeeded", 2)


def test_two_launches_at_once_make_one_run(eval_host: EvalHost) -> None:
    answers: list[dict[str, Any]] = []
    threads = [threading.Thread(target=lambda: answers.append(eval_host.launch(SLEEP))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 6 and len({answer["id"] for answer in answers}) == 1
    assert sum(answer["started"] for answer in answers) == 1
    assert [path.name for path in (eval_host.workdir / "runs").iterdir()] == [answers[0]["id"]]


@pytest.mark.parametrize(
    ("code", "exit_code", "number", "reason"),
    [
        ("print('loading'); raise ValueError('no such tensor')", 1, None, "exit code 1: ValueError: no such tensor"),
        ("raise SystemExit(7)", 7, None, "exit code 7"),
        ("import os; os.kill(os.getpid(), 11)", None, 11, "SIGSEGV"),
        ("pass", 0, None, "left no eval_results.json"),
        ("open('eval_results.json', 'w').write('{')", 0, None, "not JSON"),
    ],
)
def test_a_failure_says_code_signal_and_reason(
    eval_host: EvalHost, code: str, exit_code: int | None, number: int | None, reason: str
) -> None:
    row = eval_host.end(eval_host.launch(["{python}", "-c", code])["id"])
    assert (row["state"], row["exit_code"], row["signal"]) == ("failed", exit_code, number)
    assert reason in row["reason"]


def test_a_command_that_can_not_be_started_is_a_failed_run(eval_host: EvalHost) -> None:
    row = eval_host.end(eval_host.launch(["./no-such-program"])["id"])
    assert row["state"] == "failed" and "no-such-program" in row["reason"]


def test_a_result_written_beside_the_scripts_is_found(eval_host: EvalHost) -> None:
    run_id = eval_host.launch(["{python}", "-c", "open('eval_results.json', 'w').write('{}')"])["id"]
    assert eval_host.end(run_id)["state"] == "succeeded"
    assert (eval_host.folder(run_id) / "eval_results.json").read_text() == "{}"


def test_a_killed_supervisor_makes_the_run_lost_and_takes_the_evaluation_along(eval_host: EvalHost) -> None:
    run_id = eval_host.launch(SLEEP)["id"]
    started = eval_host.folder(run_id) / "started.json"
    wait_until(lambda: json.loads(started.read_text())["child"])
    record = json.loads(started.read_text())
    os.kill(record["pid"], signal.SIGKILL)
    row = eval_host.end(run_id)
    assert row["state"] == "lost" and "killed from outside" in row["reason"]
    wait_until(lambda: incarnation.look(record["child"]) == "gone")
    assert eval_host.launch(SUCCEED)["id"] == "eval-4000-2"


def test_a_supervisor_that_is_asked_to_end_says_so_and_leaves_nothing(eval_host: EvalHost) -> None:
    run_id = eval_host.launch(SLEEP)["id"]
    wait_until(lambda: eval_host.row(run_id)["rung"])
    os.kill(json.loads((eval_host.folder(run_id) / "started.json").read_text())["pid"], signal.SIGTERM)
    row = eval_host.end(run_id)
    assert row["state"] == "lost" and "SIGTERM" in row["reason"]
    wait_until(lambda: not processes_of(run_id, eval_host.folder(run_id)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [(("boot", "other"), "host was restarted"), (("namespace", "1"), "container was restarted")],
)
def test_a_restart_makes_the_run_lost(eval_host: EvalHost, change: tuple[str, str], reason: str) -> None:
    run_id = eval_host.launch(SLEEP)["id"]
    wait_until(lambda: eval_host.row(run_id)["rung"])
    started = eval_host.folder(run_id) / "started.json"
    record = json.loads(started.read_text())
    parts = dict(zip(("boot", "namespace", "init"), record["incarnation"].split("/"), strict=True))
    started.write_text(json.dumps({**record, "incarnation": "/".join({**parts, change[0]: change[1]}.values())}))
    row = eval_host.row(run_id)
    started.write_text(json.dumps(record))
    assert row["state"] == "lost" and reason in row["reason"]


def test_a_recycled_pid_is_not_the_supervisor(eval_host: EvalHost) -> None:
    run_id = eval_host.launch(SLEEP)["id"]
    wait_until(lambda: eval_host.row(run_id)["rung"])
    started = eval_host.folder(run_id) / "started.json"
    record = json.loads(started.read_text())
    started.write_text(json.dumps({**record, **incarnation.record(os.getpid())}))
    assert eval_host.row(run_id)["state"] == "lost"


def test_a_launch_cut_off_before_the_supervisor_started_is_given_up_and_done_again(eval_host: EvalHost) -> None:
    run_id = eval_host.launch(SUCCEED)["id"]
    eval_host.end(run_id)
    folder = eval_host.folder(run_id)
    for name in ("started.json", "exit.json"):
        (folder / name).unlink()
    assert eval_host.row(run_id)["state"] == "queued", "its launcher, this process, is alive"
    writer = json.loads((folder / "writer.json").read_text())
    (folder / "writer.json").write_text(json.dumps({**writer, "start_ticks": 1}))
    again = eval_host.launch(SUCCEED)
    assert again["started"] and again["id"] == "eval-4000-2"
    row = eval_host.row(run_id)
    assert row["state"] == "lost" and "cut off" in row["reason"]
    late = subprocess.run([sys.executable, "-I", str(folder / launcher.SUPERVISOR), str(folder)], input=b"{}\n")
    assert late.returncode == 0 and not (folder / "started.json").exists()


def test_a_supervisor_that_can_not_start_leaves_a_failed_run(eval_host: EvalHost) -> None:
    with pytest.raises(AgentError, match=r"did not start: .*broken bundle"):
        runs.launch_answer(eval_host.args(SUCCEED), Line(bundle="raise RuntimeError('broken bundle')"))
    assert eval_host.row("eval-4000")["state"] == "failed"


def test_secrets_that_did_not_arrive_whole_start_nothing(eval_host: EvalHost) -> None:
    run_id = eval_host.launch(SUCCEED)["id"]
    eval_host.end(run_id)
    folder = eval_host.folder(run_id)
    (folder / "exit.json").unlink()
    subprocess.run(
        [sys.executable, "-I", "-B", str(folder / launcher.SUPERVISOR), str(folder)], input=b'{"TOKEN": "x', check=True
    )
    wait_until((folder / "exit.json").exists)
    assert "cut off" in json.loads((folder / "exit.json").read_text())["reason"]


def test_the_time_limit_ends_a_run_that_ignores_term_with_all_it_started(eval_host: EvalHost) -> None:
    code = (
        "import signal, subprocess, sys, time; signal.signal(15, signal.SIG_IGN)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "time.sleep(60)"
    )
    run_id = eval_host.launch(["{python}", "-c", code], limits={"wall": 3, "grace": 0.5})["id"]
    row = eval_host.end(run_id)
    assert (row["state"], row["signal"]) == ("failed", 9) and row["reason"].startswith("time limit: 3 s")
    wait_until(lambda: not processes_of(run_id, eval_host.folder(run_id)))


def test_what_the_evaluation_leaves_behind_is_ended_with_it(eval_host: EvalHost) -> None:
    code = "import subprocess, sys; subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
    code += "open(sys.argv[1], 'w').write('{}')"
    run_id = eval_host.launch(["{python}", "-c", code, "{result}"])["id"]
    assert eval_host.end(run_id)["state"] == "succeeded"
    wait_until(lambda: not processes_of(run_id, eval_host.folder(run_id)))


def test_an_evaluation_that_opens_a_gpu_is_stopped(eval_host: EvalHost, tmp_path: Path) -> None:
    (tmp_path / "nvidia0").write_text("")
    code = f"import time; device = open({str(tmp_path / 'nvidia0')!r}); time.sleep(60)"
    run_id = eval_host.launch(["{python}", "-c", code], gpu_devices=[f"{tmp_path}/nvidia*"])["id"]
    row = eval_host.end(run_id)
    assert row["state"] == "failed" and row["reason"].startswith("GPU in use") and "nvidia0" in row["reason"]


def test_memory_past_the_limit_ends_the_run(eval_host: EvalHost) -> None:
    row = eval_host.end(eval_host.launch(["{python}", "-c", GREEDY], limits={"memory": 64 << 20})["id"])
    assert row["state"] == "failed" and "memory" in row["reason"] and "memory by" in row["rung"]


def test_without_a_cgroup_the_supervisor_looks_after_the_memory_itself() -> None:
    with tempfile.TemporaryDirectory() as name:
        host = EvalHost(Path(name))
        write_files(host.remote, HARNESS)
        stage(host.workdir)
        for path in [host.root, *host.root.rglob("*")]:
            shutil.chown(path, 65534, 65534)
        args = host.args(["{python}", "-c", GREEDY], limits={"memory": 64 << 20})
        launched = as_nobody(lambda: runs.launch_answer(args, Line()))
        row = host.end(launched["id"])
    assert row["state"] == "failed" and row["reason"].startswith("memory limit"), row
    assert "memory by polling and rlimit" in row["rung"] and "nice 19" in row["rung"]


def test_the_evaluation_sees_no_gpu_few_threads_its_id_and_its_secrets(eval_host: EvalHost) -> None:
    code = "import json, os, sys; json.dump(dict(os.environ, cwd=os.getcwd()), open(sys.argv[1], 'w'))"
    command = ["{python}", "-c", code, "{result}"]
    env = {"CUDA_VISIBLE_DEVICES": "0", "HF_HUB_OFFLINE": "1", "TOKEN": {"from": "env", "name": "T"}}
    args = eval_host.args(command, env=env, limits={"threads": 3})
    run_id = runs.launch_answer({**args, "secrets": {"TOKEN": "s3cret-value"}}, Line())["id"]
    assert eval_host.end(run_id)["state"] == "succeeded"
    seen = json.loads((eval_host.folder(run_id) / "eval_results.json").read_text())
    assert limits.HIDDEN_GPUS.items() <= seen.items()
    assert seen["CUDA_VISIBLE_DEVICES"] == "-1" and seen["OMP_NUM_THREADS"] == "3" and seen["HF_HUB_OFFLINE"] == "1"
    assert seen["TOKEN"] == "s3cret-value" and seen["ORCH_RUN_ID"] == run_id
    assert seen["cwd"] == str(eval_host.folder(run_id) / "harness")
    (eval_host.folder(run_id) / "eval_results.json").unlink()
    for path in eval_host.folder(run_id).rglob("*"):
        assert path.is_dir() or b"s3cret-value" not in path.read_bytes(), path


def test_a_disk_that_fills_while_a_run_writes_does_not_hide_how_it_ended(eval_host: EvalHost) -> None:
    shutil.rmtree(eval_host.workdir)
    eval_host.workdir.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(eval_host.workdir)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs root to mount a small disk")
    try:
        stage(eval_host.workdir)
        code = "import sys\nfile = open(sys.argv[1], 'wb', buffering=0)\nwhile True: file.write(bytes(1 << 16))"
        row = eval_host.end(eval_host.launch(["{python}", "-c", code, "{result}"])["id"])
        assert shutil.disk_usage(eval_host.workdir).free < 1 << 16
        assert (row["state"], row["exit_code"]) == ("failed", 1) and row["ended_at"]
        wait_until(lambda: not processes_of(row["id"], eval_host.folder(row["id"])))
    finally:
        subprocess.run(["umount", str(eval_host.workdir)], check=True)


def test_a_run_whose_folder_is_removed_ends(eval_host: EvalHost) -> None:
    run_id = eval_host.launch(SLEEP)["id"]
    wait_until(lambda: eval_host.row(run_id)["rung"])
    folder = eval_host.folder(run_id)
    shutil.rmtree(folder)
    wait_until(lambda: not processes_of(run_id, folder))


def test_the_command_names_resolved_paths_of_this_host(eval_host: EvalHost) -> None:
    (eval_host.remote / "cached_data").mkdir()
    command = ["{python}", "-c", "import json,sys; json.dump({'a': sys.argv}, open(sys.argv[2],'w'))"]
    command += ["{checkpoint}", "{result}", "--data={data.cache}", "{not a placeholder}"]
    run_id = eval_host.launch(command, data={"cache": "cached_data"})["id"]
    assert eval_host.end(run_id)["state"] == "succeeded"
    seen = json.loads((eval_host.folder(run_id) / "eval_results.json").read_text())["a"]
    assert seen[1:] == [
        str(eval_host.workdir / "checkpoints" / "abc"),
        str(eval_host.folder(run_id) / "eval_results.json"),
        f"--data={eval_host.remote}/cached_data",
        "{not a placeholder}",
    ]


def test_a_running_evaluation_never_sees_a_later_edit(eval_host: EvalHost) -> None:
    code = "import time; time.sleep(0.7); exec(open('lib/util.py').read())\n"
    code += "open('eval_results.json', 'w').write('{}')"
    run_id = eval_host.launch(["{python}", "-c", code])["id"]
    (eval_host.remote / "lib/util.py").write_text("raise SystemExit(9)\n")
    assert eval_host.end(run_id)["state"] == "succeeded"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint": "missing"}, "not there"),
        ({"python": "/no/such/python"}, "no python"),
        ({"data": {"cache": "nowhere"}}, "nowhere is not there"),
        ({"result": "../../escape.json"}, "may not be used"),
        ({"result": "exit.json"}, "may not be called"),
        ({"command": ["{data.cash}"]}, "does not define"),
    ],
)
def test_what_is_missing_or_wrong_is_refused_and_leaves_no_run(
    eval_host: EvalHost, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(AgentError, match=message):
        eval_host.launch(**{"command": SUCCEED, **changes})
    parent = eval_host.workdir / "runs"
    assert not parent.exists() or not list(parent.iterdir())


def test_a_harness_edited_since_the_plan_is_refused(eval_host: EvalHost) -> None:
    args = eval_host.args(SUCCEED)
    (eval_host.remote / "eval.py").write_text("changed")
    with pytest.raises(AgentError, match="not the version that was planned"):
        runs.launch_answer(args, Line())
    (eval_host.remote / "eval.py").unlink()
    (eval_host.remote / "eval.py").symlink_to("/etc/passwd")
    with pytest.raises(AgentError, match="not the version that was planned"):
        runs.launch_answer(args, Line())
    assert manifest.digest(args["spec"]["harness"]["files"]) == args["spec"]["harness"]["digest"]


def test_following_tells_the_whole_log_and_progress_once(eval_host: EvalHost) -> None:
    code = (
        "import json, os, sys, time\n"
        "for i in range(5):\n"
        "    print('zeile', i, 'ü', flush=True)\n"
        "    print(json.dumps({'done': i}), file=open(os.environ['ORCH_PROGRESS'], 'a'))\n"
        "    time.sleep(0.1)\n"
        "open(sys.argv[1], 'w').write('{}')"
    )
    run_id = eval_host.launch(["{python}", "-c", code, "{result}"])["id"]
    line = Line()
    answer = runs.follow_answer({"workdir": str(eval_host.workdir), "id": run_id, "all": True, "poll": 0.05}, line)
    assert "".join(message["log"] for message in line.said) == "".join(f"zeile {i} ü\n" for i in range(5))
    assert line.said[-1]["progress"] == {"done": 4} and answer["run"]["state"] == "succeeded"
    assert answer["place"]["offset"] == (eval_host.folder(run_id) / "log").stat().st_size


def test_collecting_brings_the_small_files(eval_host: EvalHost) -> None:
    run_id = eval_host.launch(SUCCEED)["id"]
    eval_host.end(run_id)
    answer = runs.collect_answer({"workdir": str(eval_host.workdir), "id": run_id}, Line())
    files = {one["name"]: base64.b64decode(one["data"]) for one in answer["files"]}
    assert json.loads(files["eval_results.json"]) == {"score": 1.5} and files["log.tail"] == b"done\n"
    assert {"spec.json", "started.json", "exit.json", "harness.json"} <= set(files) and not answer["left_out"]


@pytest.mark.parametrize("run_id", ["../x", "", ".new-1", "a/b"])
def test_an_id_that_is_no_name_is_refused(eval_host: EvalHost, run_id: str) -> None:
    with pytest.raises(AgentError, match="not the id"):
        runs.collect_answer({"workdir": str(eval_host.workdir), "id": run_id}, Line())


@pytest.mark.skipif(PYTHON38 is None, reason="no Python 3.8 here")
def test_runs_start_on_python_3_8(eval_host: EvalHost) -> None:
    args = eval_host.args(SUCCEED)
    script = (
        "import json, sys; request = json.load(sys.stdin); exec(request['bundle'], {'__name__': 'agent'})\n"
        "from remote_payload.agent import runs, evalbox, harness, staging, datadigest\n"
        "class Line: bundle = request['bundle']\n"
        "print(runs.launch_answer(request['args'], Line)['id'])\n"
    )
    request = {"args": args, "bundle": Line().bundle}
    done = subprocess.run(
        [str(PYTHON38), "-I", "-B", "-c", script], input=json.dumps(request), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert eval_host.end(done.stdout.strip())["state"] == "succeeded"
