"""What a watch remembers and which checkpoints it takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.actions.watched import Memory, State, Watched, held, name_of, waiting
from orchestrator.errors import AuthenticationFailed, HostUnreachable, OrchError, Refused
from orchestrator.model import Checkpoint, Host
from orchestrator.workflows.watch_scene import Event, Links, Wanted

ROOT = Path(__file__).parents[2]


def checkpoint(step: int, identity: str = "") -> Checkpoint:
    return Checkpoint(
        host="t", root="/c", path=f"step_{step}/c.pt", step=step, bytes=2, ship_bytes=1, identity=identity or f"i{step}"
    )


def test_what_was_put_is_there_for_the_next_watch_in_the_order_of_steps(tmp_path: Path) -> None:
    memory = Memory.of(tmp_path, "r")
    assert memory.new
    memory.begin(frozenset({"old"}))
    windows = ({"doing": "ship", "before": {"pid": 1}},)
    memory.put(Watched(checkpoint=checkpoint(100), state="seen"))
    memory.put(Watched(checkpoint=checkpoint(20), state="running", run="20-x", failures=1, windows=windows))
    memory.reached(100)
    again = Memory.of(tmp_path, "r")
    assert not again.new and again.before == {"old"} and again.newest == 100
    assert [item.step for item in again.items()] == [20, 100]
    assert again.items("running") == memory.items("running")
    assert again.knows(checkpoint(20)) and not again.knows(checkpoint(20, "old"))


def test_a_torn_one_that_was_written_anew_or_lies_elsewhere_is_another_one(tmp_path: Path) -> None:
    memory, damaged = Memory.of(tmp_path, "r"), replace(checkpoint(20), stamp="damaged")
    memory.put(Watched(checkpoint=damaged, state="torn"))
    assert memory.knows(damaged)
    assert not memory.knows(replace(damaged, stamp="restored"))
    assert not memory.knows(replace(damaged, path="step_10/c.pt"))
    memory.put(Watched(checkpoint=replace(damaged, stamp="restored"), state="evaluated"))
    assert memory.knows(damaged), "its content has been evaluated"


def test_what_any_watch_has_still_to_evaluate_is_known(tmp_path: Path) -> None:
    assert waiting(tmp_path) == frozenset()
    states: tuple[State, ...] = ("seen", "staged", "running", "evaluated", "failed", "gone", "torn")
    for step, state in enumerate(states):
        Memory.of(tmp_path, f"watch-{step % 2}").put(Watched(checkpoint=checkpoint(step), state=state))
    assert waiting(tmp_path) == {"i0", "i1", "i2"}


def test_the_same_step_with_other_content_is_another_checkpoint(tmp_path: Path) -> None:
    memory = Memory.of(tmp_path, "r")
    memory.put(Watched(checkpoint=checkpoint(20), state="evaluated"))
    memory.put(Watched(checkpoint=checkpoint(20, "rewritten"), state="seen"))
    assert [item.state for item in Memory.of(tmp_path, "r").items()] == ["evaluated", "seen"]


def test_a_memory_of_a_newer_orch_or_a_damaged_one_is_a_clear_error(tmp_path: Path) -> None:
    Memory.of(tmp_path, "r").begin(frozenset())
    file = tmp_path / "watch" / "r.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": 99}))
    with pytest.raises(OrchError, match="newer orch"):
        Memory.of(tmp_path, "r")
    file.write_text("{")
    with pytest.raises(OrchError, match="can't be read"):
        Memory.of(tmp_path, "r")


def test_runs_of_one_name_in_two_projects_have_memories_of_their_own() -> None:
    assert name_of("r", "j", "a:/x") != name_of("r", "j", "b:/x")


def test_a_lock_names_its_holder_and_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from orchestrator.actions.watched import held\n"
        "with held(pathlib.Path(sys.argv[1]), 'r', 'run r'): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin and holder.stdout and holder.stdout.readline() == b"held\n"
    who = f"run r is watched already: by process {holder.pid}, since 20"
    with pytest.raises(Refused, match=who), held(tmp_path, "r", "run r"):
        pass
    holder.kill()
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    with held(tmp_path, "r", "run r"):
        pass


def test_every_and_until_choose_steps() -> None:
    assert [step for step in (0, 5, 10, 15, 20, 30) if Wanted(every=10, until=20).takes(step)] == [0, 10, 20]
    assert Wanted(until="training-ends").takes(7)


class Forgetful:
    """Stands where connections are forgotten."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    def forget(self, host: Host) -> None:
        self.forgotten.append(host.name)


def test_a_lost_box_is_told_once_left_alone_for_a_while_and_told_when_it_is_back() -> None:
    told: list[Event] = []
    known = Forgetful()
    links = Links(known, 0.02, told.append)  # type: ignore[arg-type]
    train, evaluate = (Host(name=name, ssh=name, roles=frozenset({"train"})) for name in ("train", "eval"))

    def lost() -> int:
        raise HostUnreachable("eval: gone", host="eval")

    for _ in range(2):
        assert links.trying((train, evaluate), lost) is None
        assert links.trying((train, evaluate), lambda: 1) is None, "not before the pause is over"
        assert links.trying((train,), lambda: 1) == 1, "the other box is asked meanwhile"
        while links.pause(evaluate) > 0:
            pass
    assert links.trying((evaluate,), lambda: 2) == 2
    assert [(event.kind, event.host) for event in told] == [("lost", "eval"), ("back", "eval")]
    assert known.forgotten == ["eval", "eval"]


def test_a_refused_login_is_never_tried_again() -> None:
    def refused() -> None:
        raise AuthenticationFailed("no")

    host = Host(name="t", ssh="t", roles=frozenset({"train"}))
    with pytest.raises(AuthenticationFailed):
        Links(Forgetful(), 1, lambda event: None).trying((host,), refused)  # type: ignore[arg-type]
