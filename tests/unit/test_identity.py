"""Who a process is."""

from __future__ import annotations

import os
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observing import SLEEP, program, running

from remote_payload.agent import identity

TAIL = b" S 1 7 8 0 -1 4194560 100 0 5 0 10 20 0 0 20 0 3 0 4711 1000000 250 18446744073709551615"


@given(st.binary(min_size=0, max_size=15).filter(lambda name: b"\0" not in name))
def test_a_command_name_of_any_bytes_does_not_shift_the_fields(name):
    stat = identity.parse_stat(b"42 (" + name + b")" + TAIL)
    assert (stat.pid, stat.state, stat.parent, stat.session) == (42, "S", 1, 8)
    assert (stat.major_faults, stat.threads, stat.start_ticks, stat.rss_pages) == (5, 3, 4711, 250)


@given(st.binary(max_size=200))
def test_what_is_no_stat_line_is_a_value_error(line):
    try:
        identity.parse_stat(line)
    except ValueError:
        pass


def test_a_real_process_named_with_brackets_is_read(tmp_path):
    odd = tmp_path / "a) S 1 (b"
    odd.symlink_to(sys.executable)
    with running(odd, program(tmp_path, "x.py")) as child:
        stat = identity.read_stat(child.pid)
        assert stat is not None
        assert (stat.comm, stat.parent) == ("a) S 1 (b", os.getpid())


def test_an_identity_stays_and_another_process_has_another(tmp_path):
    with running(sys.executable, "-c", SLEEP) as first, running(sys.executable, "-c", SLEEP) as second:
        once, again, other = (identity.of_pid(pid) for pid in (first.pid, first.pid, second.pid))
        assert once == again != other
        assert once["incarnation"] == identity.incarnation()
        assert set(once) == {"incarnation", "pid", "start_ticks"}
    assert identity.of_pid(first.pid) is None


def test_the_incarnation_names_boot_namespace_and_its_first_process():
    boot, namespace, ticks = identity.incarnation().split("/")
    with open("/proc/sys/kernel/random/boot_id") as file:
        assert boot == file.read().strip()
    assert f"pid:[{namespace}]" == os.readlink("/proc/self/ns/pid")
    assert int(ticks) == identity.read_stat(1).start_ticks


@pytest.mark.skipif(os.geteuid() != 0, reason="a new PID namespace needs root")
def test_a_container_on_the_same_boot_is_another_incarnation():
    from observing import ask

    inside = ask("identity", "incarnation", prefix=["unshare", "--pid", "--fork", "--mount-proc"])
    here = identity.incarnation()
    assert inside.split("/")[0] == here.split("/")[0]
    assert inside.split("/")[1] != here.split("/")[1]


def test_start_time_is_shown_by_the_hosts_clock(tmp_path):
    before = time.time()
    with running(sys.executable, "-c", SLEEP) as child:
        started = identity.started_at(identity.read_stat(child.pid).start_ticks)
    assert before - 1 <= started <= time.time() + 1
    assert identity.utc(0) == "1970-01-01T00:00:00Z"
