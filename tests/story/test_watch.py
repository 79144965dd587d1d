"""orch watch on two local boxes: every complete checkpoint is evaluated once or said to be gone, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest
from watched import WatchedWorld
from world import wait_until

from orchestrator.reports.schema import document_schema

Make = Callable[..., WatchedWorld]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[WatchedWorld] = []

    def one(**options: object) -> WatchedWorld:
        made.append(WatchedWorld(tmp_path, **options))  # type: ignore[arg-type]
        return made[-1]

    yield one
    for world in made:
        world.close()


@pytest.mark.full
def test_new_checkpoints_are_evaluated_in_order_and_older_ones_only_when_asked_for(make: Make) -> None:
    world = make()
    for step in (20, 100):
        world.save(step)
    watching = world.start("--until", "300")
    world.wait_for_the_first_look()
    for step in (200, 300, 1000):
        world.save(step)
    assert watching.ended(90) == 0
    assert world.measured() == [200, 300], "2 before 10, and nothing past --until"
    for event in watching.events:
        jsonschema.validate(event, document_schema("watch"))
    assert watching.events[-1]["event"] == "ended" and watching.events[-1]["counts"]["result"] == 2
    again = world.start("--backfill", "--until", "1000")
    assert again.ended() == 0
    assert world.measured() == [200, 300, 20, 100, 1000]


def staged(world: WatchedWorld) -> list[int]:
    """Steps of the checkpoints that lie on the evaluation host."""
    records = (world.evaluate / "orch" / "checkpoints").glob("*/checkpoint.json")
    return sorted(json.loads(record.read_text())["step"] for record in records)


@pytest.mark.full
def test_of_evaluated_checkpoints_only_as_many_stay_as_the_host_keeps(make: Make) -> None:
    world = make()
    inventory = world.folder / "hosts.yaml"
    inventory.write_text(inventory.read_text().replace("workdir: ~/orch", "workdir: ~/orch, keep_staged: 1"))
    world.save(5)
    assert world.orch("eval-latest", "r").returncode == 0  # not brought by a watch
    for step in (10, 20, 30):
        world.save(step)
    (world.evaluate / "fails-20").touch()
    job = world.folder / "jobs" / "j.yaml"
    job.write_text(job.read_text() + "retries: 0\n")
    watching = world.start("--backfill", "--until", "30")
    assert watching.ended(90) == 8
    assert world.measured() == [5, 10, 20, 30], "none went before it was evaluated"
    assert staged(world) == [5, 30]
    cleaned = [event["text"] for event in watching.events if event["event"] == "cleaned"]
    assert [text.split(" removed")[0] for text in cleaned] == ["step 10", "step 20"]
    for event in watching.events:
        jsonschema.validate(event, document_schema("watch"))


@pytest.mark.full
def test_every_takes_multiples_of_a_step(make: Make) -> None:
    world = make()
    for step in (10, 20, 25, 30, 40):
        world.save(step)
    watching = world.start("--every", "20", "--backfill", "--until", "40")
    assert watching.ended() == 0 and world.measured() == [20, 40]


@pytest.mark.full
def test_a_second_watch_says_who_holds_the_lock_and_a_killed_one_holds_nothing(make: Make) -> None:
    world = make()
    world.save(10)
    first = world.start()
    first.wait_for("watching")
    second = world.orch("watch", "r")
    assert second.returncode == 6 and f"process {first.process.pid}, since 20" in second.stderr
    first.kill()
    third = world.start("--until", "10")
    assert third.ended() == 0, third.said()


@pytest.mark.full
def test_ctrl_c_leaves_the_evaluation_going_and_says_how_to_come_back(make: Make) -> None:
    world = make(seconds=2)
    world.save(10)
    watching = world.start("--backfill", "--every", "5")
    watching.wait_for("launched")
    watching.process.send_signal(signal.SIGINT)
    assert watching.ended() == 130
    assert "to come back: orch watch r --backfill --every 5" in watching.said()
    assert watching.events[-1]["error"]["code"] == 130
    wait_until(lambda: bool(list(world.evaluate.glob("orch/runs/*/exit.json"))), 30)
    back = world.start("--until", "10")
    assert back.ended() == 0 and world.measured() == [10] and len(back.of("result")) == 1


@pytest.mark.full
def test_it_ends_with_the_training_and_says_which_evaluations_failed(make: Make) -> None:
    world = make()
    (world.evaluate / "fails-10").touch()
    world.save(10)
    world.save(20)
    watching = world.start("--backfill", "--until", "training-ends")
    watching.wait_for("result", 20)
    world.end_training()
    assert watching.ended() == 8
    assert world.measured() == [10, 10, 20], "tried once again, and then the next"
    assert [event["event"] for event in watching.events if event["step"] == 10][-4:] == [
        "launched",
        "retry",
        "launched",
        "failed",
    ]
    assert "step 10" in watching.events[-1]["error"]["message"]


def test_what_would_stop_every_evaluation_is_refused_before_anything_is_waited_for(make: Make) -> None:
    world = make()
    (world.evaluate / "harness").mkdir()
    (world.evaluate / "harness" / "evaluate.py").write_text("# somebody's own\n")
    refused = world.orch("watch", "r")
    assert refused.returncode == 6 and "orch sync-harness j" in refused.stderr


@pytest.mark.full
def test_a_refusal_that_goes_away_delays_the_evaluation_and_loses_nothing(make: Make) -> None:
    world = make()
    watching = world.start("--until", "10")
    world.wait_for_the_first_look()
    synced = world.evaluate / "harness" / "evaluate.py"
    ours = synced.read_text()
    synced.write_text(ours + "# somebody's own\n")
    world.save(10)
    watching.wait_for("refused")
    synced.write_text(ours)
    assert watching.ended() == 0 and world.measured() == [10]
    assert len(watching.of("refused")) == 1, "said once"


@pytest.mark.full
def test_a_run_that_is_refused_in_the_queue_is_tried_again_and_its_checkpoint_stays(make: Make) -> None:
    """A training begins on the evaluation host while the run waits for another evaluation, and ends again."""
    world = make()
    inventory, neighbour, go = world.folder / "hosts.yaml", world.evaluate / "neighbour.pid", world.evaluate / "go"
    text = inventory.read_text().replace("roles: [eval]", "roles: [train, eval], keep_staged: 1")
    place = f"{{host: eval-box, checkpoints: {world.evaluate}, process: {{pidfile: {neighbour}}}}}"
    inventory.write_text(text.replace("runs: {", f"runs: {{neighbour: {place}, "))
    job = (world.folder / "jobs" / "j.yaml").read_text()
    wait = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)"
    command = json.dumps(["{python}", "-c", wait, "{checkpoint}", "{result}"])
    (world.folder / "jobs" / "waits.yaml").write_text(
        "\n".join(f"command: {command}" if line.startswith("command") else line for line in job.splitlines())
    )
    neighbour.write_text(str(2**22 - 1))  # nobody's
    world.save(10)
    begun = world.orch("eval-latest", "r", "--job", "waits", "--detach")
    assert begun.returncode == 0, begun.stderr
    watching = world.start("--backfill", "--until", "10")
    watching.wait_for("launched")
    training = subprocess.Popen(["sleep", "600"])
    try:
        neighbour.write_text(str(training.pid))
        go.touch()
        watching.wait_for("refused", 10)
        assert "a training runs here now: neighbour" in watching.of("refused")[0]["text"]
        assert staged(world) == [10]
    finally:
        training.kill()
        training.wait()
    assert watching.ended() == 0, watching.said()
    assert world.measured() == [10] and not watching.of("failed", "retry")


def test_a_result_goes_to_the_hook_and_into_tensorboard_once(make: Make, tmp_path: Path) -> None:
    hook = "import json, sys; open(sys.argv[1], 'a').write(json.dumps(json.load(sys.stdin)) + chr(10))"
    told, board = tmp_path / "told.jsonl", tmp_path / "board"
    words = json.dumps([sys.executable, "-c", hook, str(told)])
    world = make(config=f"hooks: {{result: {words}}}\ntensorboard: {board}\n")
    for step in (20, 10):
        world.save(step)
    assert world.orch("eval-latest", "r").returncode == 0
    assert world.start("--backfill", "--until", "20").ended() == 0
    assert world.orch("eval-latest", "r").returncode == 0
    documents = [json.loads(line) for line in told.read_text().splitlines()]
    assert [document["step"] for document in documents] == [20, 10]
    for document in documents:
        jsonschema.validate(document, document_schema("result"))
        assert document["result"]["headline"]["value"] == document["step"]
        assert json.loads(Path(document["result"]["file"]).read_text())["score"] == document["step"]
    assert read_back(board / "r" / "j") == {
        "headline/value": [(10, 10.0), (20, 20.0)],
        "score": [(10, 10.0), (20, 20.0)],
        "more/half": [(10, 5.0), (20, 10.0)],
    }


@pytest.mark.full
def test_a_hook_that_fails_is_a_warning(make: Make) -> None:
    world = make(config="hooks: {result: [sh, -c, 'echo no such channel >&2; exit 5'], timeout: 5s}\n")
    world.save(10)
    done = world.orch("eval-latest", "r", "--json")
    assert done.returncode == 0
    assert any("exit 5: no such channel" in warning for warning in json.loads(done.stdout)["warnings"])


def read_back(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag -> points, as TensorBoard itself reads them."""
    code = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
seen = EventAccumulator(sys.argv[1]); seen.Reload()
tags = seen.Tags()["scalars"]
print(json.dumps({tag: [(event.step, event.value) for event in seen.Scalars(tag)] for tag in tags}))
"""
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    return {tag: sorted(map(tuple, points)) for tag, points in json.loads(done.stdout).items()}


def agents_of(pid: int) -> list[int]:
    """Agents that a watch has started on its local boxes."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for place in children for word in place.read_text().split()]


def break_connection(pid: int, seconds: float = 60) -> None:
    """On a local box the way to it is the agent's pipes: they are cut while a question is asked."""
    wait_until(lambda: bool(agents_of(pid)), seconds)
    for agent in agents_of(pid):
        os.kill(agent, signal.SIGKILL)


def patiently(happened: Callable[[], bool], seconds: float) -> None:
    """Wait for something, but no longer than a training would."""
    until = time.monotonic() + seconds
    while not happened() and time.monotonic() < until:
        time.sleep(0.05)


@pytest.mark.timeout(500)  # a busy machine gives what runs on a training box its turn last
def test_nothing_is_evaluated_twice_or_skipped_through_rotation_damage_and_kills(make: Make) -> None:
    """Sixteen checkpoints, rotation of three: two torn, one rewritten, one that fails, two kills, one cut."""
    world = make(seconds=0.2)
    (world.evaluate / "fails-150").touch()
    seen = []
    watching = world.start("--backfill", "--until", "training-ends")
    watching.wait_for("watching")
    complete: set[int] = set()
    for step in range(10, 170, 10):
        place = world.save(step, keep=3)
        content = bytearray(place.read_bytes())
        if step == 30:  # cut short: its structure shows it
            place.write_bytes(content[:-200])
        elif step == 60:  # a damaged record: only its CRC shows it
            at = content.find(b"\x00\x00\x70\x42" * 64)  # 60.0, as the weights hold it
            content[at + 8] ^= 1
            place.write_bytes(content)
        else:
            complete.add(step)
        patiently(lambda step=step, now=watching: any(event["step"] == step for event in now.of("staged", "gone")), 2.0)
        if step == 40:
            wait_until(lambda now=watching: any("step_30" in event["text"] for event in now.of("torn")), 60)
        if step == 60:
            watching.wait_for("torn", 60)
        if step == 90:  # the same step, other weights
            world.save(90, value=9090)
            complete.add(9090)
        if step in (50, 130):
            watching.kill()
            seen += watching.events
            watching = world.start("--backfill", "--until", "training-ends")
        if step == 80:
            break_connection(watching.process.pid)
    world.end_training()
    code = watching.ended(240)
    seen += watching.events
    counts = Counter(world.measured())
    gone = {event["step"] for event in seen if event["event"] == "gone"}
    assert code == (0 if 150 in gone else 8), watching.said()
    torn = " ".join(event["text"] for event in seen if event["event"] == "torn")
    assert counts.pop(150, 0) == (0 if 150 in gone else 2), "the one that fails is tried twice"
    assert all(count == 1 for count in counts.values()), counts
    assert counts.keys() <= complete
    assert complete - counts.keys() - {150} <= gone | {9090 if 90 in gone else 0}, (complete, counts, gone)
    assert "step_30" in torn and "step 60" in torn
    results = [event["result"]["headline"]["value"] for event in seen if event["event"] == "result"]
    assert set(results) == set(counts), "every evaluation's result came home"
