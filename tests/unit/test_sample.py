"""A receipt's sample of a process: real ones."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observing import SLEEP, running, wait_for_state

from remote_payload.agent import identity
from remote_payload.agent.sample import COUNTERS, Sampler, parse_psi, sample


def test_a_running_process_and_its_log_are_sampled(tmp_path):
    log = tmp_path / "log"
    log.write_text("step 5296 epoch 1.04 loss 2.31 19.5K tok/s\n")
    code = "import threading, time; threading.Thread(target=time.sleep, args=(120,), daemon=True).start()\n" + SLEEP
    with running(sys.executable, "-c", code) as child:
        who = identity.of_pid(child.pid)
        told = sample(who, str(log), None)
        assert (told["state"], told["identity"], told["threads"]) == ("running", who, 2)
        assert (told["step"], told["rate"], told["rate_unit"], told["stalled"]) == (5296, 19500.0, "tok/s", False)
        assert told["rss"] > 1 << 20
        assert all(told[name] >= 0 for name in COUNTERS)
        assert set(told["io"]) == {"read_bytes", "write_bytes"}
        assert set(told["hidden"]) <= {"psi"}
        child.send_signal(signal.SIGSTOP)
        wait_for_state(child.pid, "T")
        assert sample(who, None, None)["state"] == "stopped"


def test_waiting_for_a_core_is_counted():
    burn = "print('ready', flush=True)\nwhile True: pass\n"
    core = {min(os.sched_getaffinity(0))}
    with running(sys.executable, "-c", burn) as one, running(sys.executable, "-c", burn) as two:
        for child in (one, two):
            os.sched_setaffinity(child.pid, core)
        who = identity.of_pid(one.pid)
        before = sample(who, None, None)
        time.sleep(0.5)
        after = sample(who, None, None)
    waited = (after["run_queue_wait_ns"] - before["run_queue_wait_ns"]) / 1e9
    assert waited > 0.1 * (after["monotonic"] - before["monotonic"])
    assert after["involuntary_switches"] > before["involuntary_switches"]


def test_ranks_are_counted_together():
    with running(sys.executable, "-c", SLEEP) as one, running(sys.executable, "-c", SLEEP) as two:
        who = identity.of_pid(one.pid)
        sampler = Sampler(who, [one.pid, two.pid])
        found = sampler.take()
        assert (found["threads"], found["ranks"]) == (2, sorted([one.pid, two.pid]))
        two.kill()
        wait_for_state(two.pid, "Z")
        assert sampler.take()["ranks"] == [one.pid]


def test_what_an_ended_thread_had_used_up_stays_in_the_sums():
    code = """if True:
        import threading
        print('ready', flush=True)
        thread = threading.Thread(target=sum, args=(range(20_000_000),))
        thread.start()
        thread.join()
        print('joined', flush=True)
        time.sleep(60)
    """
    with running(sys.executable, "-c", "import time\n" + code) as child:
        sampler = Sampler(identity.of_pid(child.pid))
        time.sleep(0.1)
        during = sampler.take()
        assert child.stdout.readline() == "joined\n"
        while (after := sampler.take())["threads"] > 1:
            time.sleep(0.01)  # joined, yet its thread may still be on its way out
    assert during["threads"] == 2
    for name in ("run_ns", "run_queue_wait_ns", "voluntary_switches", "involuntary_switches"):
        assert after[name] >= during[name], name


def test_an_ended_recycled_or_rebooted_training_is_absent_and_says_why():
    with running(sys.executable, "-c", SLEEP) as child:
        who = identity.of_pid(child.pid)
        for change, reason in (
            ({"start_ticks": who["start_ticks"] - 1}, "belongs to another"),
            ({"incarnation": "x"}, "restarted"),
        ):
            told = sample({**who, **change}, None, None)
            assert (told["state"], told["rss"]) == ("absent", None)
            assert reason in told["reason"]
    assert "ended" in sample(who, None, None)["reason"]


def test_what_the_log_does_not_tell_is_named(tmp_path):
    with running(sys.executable, "-c", SLEEP) as child:
        told = sample(identity.of_pid(child.pid), str(tmp_path / "none"), None)
    assert {"step", "rate"} <= set(told["hidden"])


@pytest.mark.skipif(os.geteuid() != 0, reason="another user needs root")
def test_what_another_user_may_not_see_is_named(tmp_path):
    with running(sys.executable, "-c", SLEEP) as child:
        who = identity.of_pid(child.pid)
        pid = os.fork()
        if pid == 0:
            os.setresuid(65534, 65534, 65534)
            told = sample(who, None, None)
            fine = told["state"] == "running" and told["io"] is None and "io" in told["hidden"] and told["rss"] > 0
            os._exit(0 if fine else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_pressure_is_read():
    text = "some avg10=6.97 avg60=2.80 avg300=0.93 total=8051304\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    assert parse_psi(text) == {"some": {"avg10": 6.97, "total_us": 8051304.0}, "full": {"avg10": 0.0, "total_us": 7.0}}


@given(st.text(max_size=200))
def test_any_pressure_file_is_read_without_a_surprise(text):
    parse_psi(text)
