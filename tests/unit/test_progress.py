"""How far a training is, from logs as trainers write them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observing import ask

from remote_payload.agent import progress
from remote_payload.agent.errors import AgentError
from remote_payload.agent.logtail import lines_of
from remote_payload.agent.progress_formats import PRESETS
from remote_payload.agent.progress_numbers import number, rate_of, whole

NOW = 1_800_000_000.0
BAR = "█████▎    "


def log_of(tmp_path, text: str, name: str = "train.log", age: float = 5.0):
    path = tmp_path / name
    path.write_bytes(text.encode())
    os.utime(path, (NOW - age, NOW - age))
    return path


def read(path, pattern=None, **options):
    return progress.read(str(path), pattern, NOW, **options)


FORMATS = {
    "plain": (
        "step 5295 epoch 1.04 loss 2.35 19.4K tok/s\nstep 5296 epoch 1.04 loss 2.31 19.5K tok/s\n",
        {"step": 5296, "epoch": 1.04, "loss": 2.31, "rate": 19500.0, "rate_unit": "tok/s"},
    ),
    "huggingface": (
        f"\r 52%|{BAR}| 5286/10000 [1:02:03<55:04,  1.42it/s]\r{{'loss': '2.314', 'grad_norm': '1.2', 'learning_rate': "
        f"'1e-05', 'epoch': '1.04'}}\n\r 53%|{BAR}| 5296/10000 [1:02:13<55:04,  1.42it/s]",
        {"step": 5296, "epoch": 1.04, "loss": 2.314, "rate": 1.42, "rate_unit": "it/s", "steps_per_s": 1.0},
    ),
    "lightning": (
        f"\rEpoch 3:  42%|{BAR}| 419/1000 [00:33<00:45, 12.71it/s, v_num=0, train_loss=2.35]"
        f"\rEpoch 3:  42%|{BAR}| 420/1000 [00:33<00:45, 12.71it/s, v_num=0, train_loss=2.31]",
        {"step": 3420, "epoch": 3.42, "loss": 2.31, "rate": 12.71, "rate_unit": "it/s"},
    ),
    "torchtitan": (
        "[titan] 2026-11-30 12:00:00,100 - root - INFO - \x1b[31mstep: 5286  \x1b[32mloss:  2.3500  \x1b[33mmem: "
        "40.00GiB(50%)  \x1b[34mtps: 19,400  \x1b[36mtflops: 300.10  \x1b[35mmfu: 30.00%\x1b[39m\n"
        "[titan] 2026-11-30 12:00:20,100 - root - INFO - \x1b[31mstep: 5296  \x1b[32mloss:  2.3100  \x1b[33mmem: "
        "40.00GiB(50%)  \x1b[34mtps: 19,500  \x1b[36mtflops: 300.10  \x1b[35mmfu: 30.00%\x1b[39m\n",
        {
            "step": 5296,
            "loss": 2.31,
            "rate": 19500.0,
            "rate_unit": "tok/s",
            "steps_per_s": 0.5,
            "pace_from": "timestamps",
        },
    ),
    "deepspeed": (
        "[2026-11-30 12:00:10,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=5290, skipped=3, lr=[1e-05]\n"
        "[2026-11-30 12:00:10,001] [INFO] [timer.py:215:stop] epoch=1/micro_step=10592/global_step=5296, "
        "RunningAvgSamplesPerSec=12.25, CurrSamplesPerSec=12.5, MemAllocated=1.0GB, MaxMemAllocated=2.0GB\n",
        {"step": 5296, "epoch": 1.0, "rate": 12.25, "rate_unit": "samples/s"},
    ),
    "deepspeed-megatron": (
        " [2026-11-30 12:00:10] iteration     5296/  100000 | consumed samples:      1355776 | elapsed time per "
        "iteration (ms): 250.0 | learning rate: 1.0E-05 | global batch size: 256 | lm loss: 2.310000E+00 |\n",
        {"step": 5296, "loss": 2.31, "steps_per_s": 4.0, "pace_from": "line"},
    ),
    "nanogpt": (
        "step 5250: train loss 2.4000, val loss 2.5000\niter 5295: loss 2.3500, time 135.00ms, mfu 30.12%\n"
        "iter 5296: loss 2.3100, time 125.00ms, mfu 30.12%\n",
        {"step": 5296, "loss": 2.31, "steps_per_s": 8.0},
    ),
    "nanogpt-chat": (
        "step 05296/21400 (24.75%) | loss: 2.310000 | lrm: 1.00 | dt: 500.00ms | tok/sec: 19,500 | mfu: 30.1\n",
        {"step": 5296, "loss": 2.31, "rate": 19500.0, "rate_unit": "tok/s", "steps_per_s": 2.0},
    ),
    "nanogpt-modded": (
        "step:5296/6200 train_loss:2.3100 train_time:1234567ms step_avg:250.00ms\n",
        {"step": 5296, "loss": 2.31, "steps_per_s": 4.0},
    ),
    "jsonl": (
        '{"step": 5286, "epoch": 1.0, "loss": 2.35, "tokens_per_sec": 19400, "timestamp": 1800.0}\n'
        '{"step": 5296, "epoch": 1.04, "loss": 2.31, "tokens_per_sec": 19500, "timestamp": 1820.0}\n',
        {"step": 5296, "epoch": 1.04, "loss": 2.31, "rate": 19500.0, "rate_unit": "tok/s", "steps_per_s": 0.5},
    ),
    "tqdm": (
        f"Loading checkpoint shards: 100%|{BAR}| 4/4 [9:00:10<00:00,  2.1s/it]\n"
        f"\rTraining:  53%|{BAR}| 5296/10000 [1:02:13<55:04,  2.00s/it, loss=2.31]",
        {"step": 5296, "loss": 2.31, "rate": 0.5, "rate_unit": "it/s", "steps_per_s": 0.5},
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_each_trainers_log_is_read_by_its_preset_and_without_one(tmp_path, name):
    text, expected = FORMATS[name]
    path = log_of(tmp_path, text)
    for pattern in (name.partition("-")[0], None):
        told = read(path, pattern)
        assert {key: told[key] for key in expected} == expected


def test_a_trainer_state_is_read_whole_or_from_its_end(tmp_path):
    import json

    entries = [{"epoch": step / 5000, "loss": 2.0, "step": step} for step in range(0, 5300, 1)]
    state = {"epoch": 1.06, "global_step": 5299, "log_history": entries[-20:], "max_steps": 10000}
    path = log_of(tmp_path, json.dumps(state, indent=2, sort_keys=True) + "\n", "trainer_state.json")
    assert (read(path)["step"], read(path)["epoch"]) == (5299, 1.06)
    state["log_history"] = entries
    path = log_of(tmp_path, json.dumps(state, indent=2, sort_keys=True) + "\n", "trainer_state.json")
    assert path.stat().st_size > 256 * 1024
    assert read(path)["step"] == 5299


def test_the_users_own_expression_is_used(tmp_path):
    path = log_of(tmp_path, "it=7 L 2.5 at 3.2M samples per second\nit=8 L 2.4 at 3.3M samples per second\n")
    told = read(path, r"it=(?P<step>\d+) L (?P<loss>\S+) at (?P<rate>[\d.]+M) (?P<unit>samples per second)")
    assert (told["step"], told["loss"], told["rate"], told["rate_unit"]) == (8, 2.4, 3_300_000.0, "samples/s")
    for wrong in ("(", "no groups", r"(?P<stepp>\d+)"):
        with pytest.raises(AgentError, match="progress pattern"):
            read(path, wrong)


def test_an_expression_that_never_ends_is_ended(tmp_path):
    path = log_of(tmp_path, "a" * 3000 + "\n")
    began, before = time.monotonic(), children()
    with pytest.raises(AgentError, match="took longer"):
        read(path, r"(?P<step>(a+)+)b")
    assert time.monotonic() - began < 3
    assert children() <= before, "a child is left behind"


def children() -> set[str]:
    """Process ids of this process' children, those of earlier tests included."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {pid for task in tasks for pid in task.read_text().split()}


def test_an_unfinished_line_tells_nothing(tmp_path):
    path = log_of(tmp_path, "step 5296 loss 2.31\nstep 52")
    assert read(path)["step"] == 5296
    assert read(log_of(tmp_path, "step 5296 loss 2.31\nstep 5297 loss 2.")) == read(path)


def test_colours_holes_and_broken_text_do_not_hide_a_step(tmp_path):
    path = tmp_path / "train.log"
    path.write_bytes(b"\0" * 5000 + b"\xff\xfe junk \xc3\n\x1b[32mstep\x1b[0m 7 loss 1.5\r\n")
    assert read(path)["step"] == 7


def test_a_log_just_rotated_is_finished_first(tmp_path):
    old = log_of(tmp_path, "step 5296 loss 2.31\n", "train.log.1", age=30)
    new = log_of(tmp_path, "saving\n", age=1)
    assert (read(new)["step"], read(new)["age_s"]) == (5296, 30.0)
    new.write_text("step 5297 loss 2.3\n")
    assert read(new)["step"] == 5297
    old.unlink()


def test_nothing_recognised_is_none_and_no_log_is_an_error(tmp_path):
    assert read(log_of(tmp_path, "hello\nworld\n")) is None
    assert read(log_of(tmp_path, "")) is None
    for path in (tmp_path / "none.log", tmp_path):
        with pytest.raises(AgentError):
            read(path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(AgentError, match="not a file"):
        read(tmp_path / "fifo")


def dated(steps, seconds_apart: int, last: int = 43_200) -> str:
    lines = []
    for back in reversed(range(steps)):
        second = last - back * seconds_apart
        clock = f"2026-11-30 {second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        lines.append(f"{clock} step {steps - back} loss 2.0\n")
    return "".join(lines)


def test_stalled_is_judged_by_its_own_pace(tmp_path):
    for interval, age, stalled in ((1, 59, False), (1, 61, True), (30, 299, False), (30, 301, True)):
        told = read(log_of(tmp_path, dated(20, interval), age=age))
        assert (told["steps_per_s"], told["stalled"], told["age_s"]) == (pytest.approx(1 / interval), stalled, age)
        assert told["at"] == time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(NOW - age))


def test_a_log_without_times_is_stalled_after_ten_minutes_and_has_no_pace(tmp_path):
    told = read(log_of(tmp_path, FORMATS["plain"][0], age=599))
    assert (told["stalled"], told["steps_per_s"], told["pace_from"]) == (False, None, None)
    assert read(log_of(tmp_path, FORMATS["plain"][0], age=601))["stalled"]


def test_a_warning_repeated_for_hours_is_no_progress(tmp_path):
    text = dated(20, 1) + "2026-11-30 14:00:00 WARNING still waiting for rank 3\n"
    told = read(log_of(tmp_path, text, age=1))
    assert (told["age_s"], told["stalled"]) == (7201.0, True)


def test_a_writer_that_fills_blocks_is_not_stalled_between_them(tmp_path):
    text = dated(300, 5)
    whole_blocks = text[: len(text) - len(text) % 4096]
    assert not whole_blocks.endswith("\n")
    assert not read(log_of(tmp_path, whole_blocks, age=600))["stalled"]
    assert read(log_of(tmp_path, text, age=600))["stalled"]


def test_a_log_born_with_its_process_tells_a_pace_by_its_age(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("".join(f"step {step} loss 2.0 19.5K tok/s\n" for step in range(0, 2001, 10)))
    born = time.time()
    os.utime(path, (born + 1000, born + 1000))
    told = progress.read(str(path), None, born + 1005, started=born - 3)
    if told["pace_from"] is None:
        pytest.skip("this file system does not tell when a file was made")
    assert told["steps_per_s"] == pytest.approx(2.0, rel=0.01)
    assert (told["pace_from"], told["stalled"]) == ("log", False)
    assert progress.read(str(path), None, born + 1100, started=born)["stalled"]
    assert progress.read(str(path), None, born + 1005, started=born - 86_400)["pace_from"] is None


def test_a_restart_in_the_log_does_not_bend_the_pace(tmp_path):
    text = "2026-11-30 11:00:00 step 9000 loss 2.0\n" + dated(20, 2)
    assert read(log_of(tmp_path, text))["steps_per_s"] == pytest.approx(0.5)


def test_a_loss_that_is_no_number_is_told(tmp_path):
    told = read(log_of(tmp_path, "step 3 loss nan\n"))
    assert (told["step"], told["loss"]) == (3, "nan")


def test_an_evaluations_bar_does_not_pass_for_the_training(tmp_path):
    text = (
        f"\r 53%|{BAR}| 5296/10000 [1:02:13<55:04,  1.42it/s]\n"
        f"\r  1%|{BAR}| 1/100 [00:01<01:40,  1.0it/s]\r 50%|{BAR}| 50/100 [00:50<00:50,  1.0it/s]"
    )
    assert read(log_of(tmp_path, text))["step"] == 5296


def test_a_huge_log_costs_little_time_and_memory(tmp_path):
    path = tmp_path / "train.log"
    with open(path, "wb") as file:
        file.truncate(200 << 20)
        file.seek(0, 2)
        file.write(FORMATS["plain"][0].encode())
    began = time.monotonic()
    assert progress.read(str(path), None, time.time())["step"] == 5296
    assert time.monotonic() - began < 0.25
    with open(path, "r+b") as file:
        file.truncate(200 << 20)  # nothing but a hole: the worst case, read to its limit
    began = time.monotonic()
    assert progress.read(str(path), None, time.time()) is None
    assert time.monotonic() - began < 1
    assert ask("progress", "read", str(path), None, 0.0, prefix=["prlimit", "--data=100000000"]) is None


def test_four_mebibytes_without_a_step_end_in_time(tmp_path):
    path = log_of(tmp_path, "WARNING: steps take 1,234.5 s, loss of connection\n" * 100_000)
    began = time.monotonic()
    assert read(path) is None
    assert time.monotonic() - began < 2


@given(st.lists(st.text(max_size=80), max_size=30), st.booleans())
def test_any_text_is_read_without_a_surprise(lines, cut):
    for line in lines_of("\n".join(lines).encode("utf-8", "surrogatepass"), cut_first=cut):
        for reader in PRESETS.values():
            reading = reader(line)
            assert reading is None or reading.step is None or reading.step >= 0


@given(st.text(alphabet="0123456789.,%|/[]:<> ites-+{}'\"=stepochlrank", max_size=300))
def test_lines_like_progress_are_read_without_a_surprise(line):
    for reader in PRESETS.values():
        reader(line)


SPITEFUL = [
    "1",
    "1,",
    "step ",
    "step 1 ",
    "loss ",
    "1/1 [",
    "1/1 [00:01<",
    "Epoch 1/1 ",
    "{'a': ",
    "step=1 ",
    "1e1",
    "'a",
]


@pytest.mark.parametrize("piece", SPITEFUL)
@pytest.mark.parametrize("start", ["", "step", "iteration per iteration", "loss", "Epoch 1: ", "{'", "tps: step: "])
def test_a_reader_takes_little_time_on_the_worst_of_lines(start, piece):
    line = (start + piece * 4096)[:4096]
    began = time.process_time()
    for reader in PRESETS.values():
        reader(line)
        reader(start + " " * 4000 + piece)
    assert time.process_time() - began < 0.5


@given(st.integers(0, 10**9), st.floats(0.01, 1e6), st.sampled_from(["tok/s", "tokens/sec", "K tok/s", "Ktok/s"]))
def test_numbers_and_units_come_back(step, rate, unit):
    assert whole(f"{step:,}") == step
    value, name = rate_of(f"{rate:.6f}", unit)
    assert name == "tok/s"
    assert value == pytest.approx(rate * (1000 if unit.startswith("K") else 1), abs=1e-2)


@given(st.one_of(st.text(max_size=20), st.none(), st.booleans(), st.floats(), st.integers()))
def test_what_is_no_number_is_none(value):
    assert number(value) is None or isinstance(number(value), float)
    whole(value)
    rate_of(value, value)
