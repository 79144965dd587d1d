"""Hooks and event files: told once, within their time, and never at the cost of the result."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.actions import event_files, hooks
from orchestrator.config import load_user_config
from orchestrator.errors import ConfigError
from orchestrator.model import Digests, Estimate, Receipt, Result

ROOT = Path(__file__).parents[2]


def result(step: int, run_id: str = "") -> Result:
    return Result(
        id=run_id or f"{step}-aaaa",
        run="r",
        job="j",
        host="eval",
        step=step,
        headline_name="a.b",
        headline=Estimate(value=step / 2, low=1.0, high=9.0),
        baseline=Estimate(value=3.0),
        verdict="better",
        digests=Digests(checkpoint="a", harness="b", job="c", data="d"),
        receipt=Receipt(verdict="undisturbed", reasons=(), windows=(), limits=()),
        source=None,
        origin="t:/c",
        file="r.json",
        ended_at="2026-11-30T12:00:00Z",
        folder=Path("/nowhere"),
    )


def test_a_hook_hears_the_document_on_its_stdin(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    assert hooks.tell(["sh", "-c", f"cat > {heard}; echo ignored"], {"step": 4}, 10) == ""
    assert json.loads(heard.read_text()) == {"step": 4}


def test_a_hook_that_fails_or_is_not_there_says_why() -> None:
    assert hooks.tell(["sh", "-c", "echo broken >&2; exit 3"], {}, 10) == "exit 3: broken"
    assert hooks.tell(["/nowhere/hook"], {}, 10) == "can't start: No such file or directory"
    assert hooks.tell(["sh", "-c", "exec <&-; exit 0"], {"long": "x" * 10**6}, 10) == "", (
        "one that reads nothing is fine"
    )


def test_a_hook_out_of_time_ends_with_all_that_it_started(tmp_path: Path) -> None:
    began = time.monotonic()
    said = hooks.tell(["sh", "-c", f"(sleep 3; touch {tmp_path}/late) & sleep 30"], {}, 0.5)
    assert said == "not done within 0.5 s, and was ended" and time.monotonic() - began < 10
    time.sleep(3.2)
    assert not (tmp_path / "late").exists()


def test_a_hook_ends_with_its_own_process_whatever_it_leaves_running(tmp_path: Path) -> None:
    """What it left holds its stderr open, in a session of its own: nothing of orch's can end that, or waits for it."""
    stay = f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 30' &"
    ready = f"while ! [ -s {tmp_path}/pid ]; do sleep 0.01; done"
    for rest, timeout, said in (("exit 0", 20.0, ""), ("sleep 30", 1.0, "not done within 1 s, and was ended")):
        began = time.monotonic()
        try:
            assert hooks.tell(["sh", "-c", f"{stay} {ready}; {rest}"], {}, timeout) == said
            assert time.monotonic() - began < 10
        finally:
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
            (tmp_path / "pid").unlink()


def test_a_hook_that_floods_stderr_costs_no_memory_and_its_last_words_are_told(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    flood = "import os\nfor _ in range(2048): os.write(2, b'x' * 65536)\nos.write(2, b'the reason'); os._exit(4)"
    said = hooks.tell([sys.executable, "-c", flood], {"long": "y" * 10**6}, 30)
    assert said.startswith("exit 4: xx") and said.endswith("the reason") and len(said) < 400
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10, "of 128 MiB"


def test_the_same_result_is_written_once(tmp_path: Path) -> None:
    document = {"schema": 1, "step": 4, "a": {"b": 2.0, "ok": True, "none": None}, "rows": [1], "big": float("inf")}
    assert event_files.write(tmp_path, result(4), document) is not None
    assert event_files.write(tmp_path, result(4), document) is None
    assert event_files.write(tmp_path, result(4, "4-aaaa-2"), document) is not None, "another attempt is another result"
    assert len(list((tmp_path / "r" / "j").iterdir())) == 2
    assert event_files.scalars(result(4), document) == {
        "headline/value": 2.0,
        "headline/low": 1.0,
        "headline/high": 9.0,
        "baseline_headline/value": 3.0,
        "a/b": 2.0,
    }


def test_a_result_whose_writing_was_cut_off_is_written_the_next_time(tmp_path: Path) -> None:
    whole = event_files.write(tmp_path, result(4), {})
    assert whole is not None
    cut = whole.with_name(f".{os.getpid() + 1}{whole.name[whole.name.index('.orch-') :]}")
    whole.rename(cut)  # as a kill in the middle leaves it
    assert event_files.write(tmp_path, result(4), {}) is not None


def test_numbers_that_no_float_can_hold_are_left_out(tmp_path: Path) -> None:
    document = {"huge": 10**400, "none": float("nan"), "fits": 10**30}
    assert event_files.write(tmp_path, result(4), document) is not None
    assert [tag for tag in event_files.scalars(result(4), document) if "line" not in tag] == ["fits"]


@pytest.mark.parametrize("name", ["../../outside", "/outside", "..", "", "a\x00b\n", "x" * 5000])
def test_events_stay_in_their_folder_whatever_a_host_calls_its_run(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "deep" / "events"
    written = event_files.write(folder, replace(result(4), run=name, job=name), {})
    assert written is not None and written.resolve().parents[2] == folder.resolve()
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]


def test_tensorboard_reads_the_steps_of_checkpoints(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for step in (2000, 4000, 6000, 3000):  # the last one by --backfill
        event_files.write(tmp_path, result(step), {})
    seen = EventAccumulator(str(tmp_path / "r" / "j"))
    seen.Reload()
    points = [(event.step, event.value) for event in seen.Scalars("headline/value")]
    assert sorted(points) == [(2000, 1000.0), (3000, 1500.0), (4000, 2000.0), (6000, 3000.0)]


def test_without_the_package_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(ConfigError) as caught:
        event_files.write(tmp_path, result(4), {})
    assert "orch[tensorboard]" in caught.value.hint and not list(tmp_path.iterdir())


def test_writing_events_imports_no_torch(tmp_path: Path) -> None:
    code = """
import sys, pathlib
sys.path[:0] = sys.argv[2:]
from test_passing_on import event_files, result
event_files.write(pathlib.Path(sys.argv[1]), result(4), {})
assert "torch" not in sys.modules and "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path), str(ROOT), str(Path(__file__).parent)], check=True)


def test_the_users_own_file_names_hook_and_folder(tmp_path: Path) -> None:
    file = tmp_path / "orch" / "config.yaml"
    file.parent.mkdir()
    file.write_text("hooks: {result: [~/bin/tell, '~/x'], timeout: 5s}\ntensorboard: ~/board\n")
    file.chmod(0o600)
    user = load_user_config({**os.environ, "XDG_CONFIG_HOME": str(tmp_path)})
    assert user.result_hook == (str(Path.home() / "bin/tell"), "~/x") and user.hook_timeout == 5
    assert user.tensorboard == Path.home() / "board"
    file.write_text("tensorboard: board\n")
    with pytest.raises(ConfigError, match="absolute path"):
        load_user_config({**os.environ, "XDG_CONFIG_HOME": str(tmp_path)})
