"""What a host has, as its own limits leave it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observing import ROOT, ask

from remote_payload.agent import hostinfo, identity


def test_the_facts_of_this_host(tmp_path):
    facts = hostinfo.facts(str(tmp_path / "not" / "yet" / "there"))
    assert facts["hostname"] == os.uname().nodename
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["incarnation"] == identity.incarnation()
    assert len(facts["load"]) == 3
    assert 1 <= facts["cpus"] <= os.cpu_count()
    assert 0 < facts["memory"]["available"] <= facts["memory"]["total"]
    assert facts["disk"]["path"] == str(tmp_path)
    usage = shutil.disk_usage(tmp_path)
    assert facts["disk"]["total"] == usage.total
    assert abs(facts["disk"]["free"] - usage.free) < 1 << 30


def test_cores_follow_the_affinity():
    here = os.sched_getaffinity(0)
    assert ask("hostinfo", "cpus", prefix=["taskset", "-c", str(min(here))]) == 1


def group(controller: str) -> Path:
    """A new child of this process's own group of a v1 controller."""
    text = [Path(f"/proc/self/{name}").read_text() for name in ("cgroup", "mountinfo")]
    own = hostinfo.cgroup_of(controller, *text)
    if own is None or own.version != 1:
        pytest.skip(f"no cgroup v1 {controller} here")
    path = Path(own.folder) / f"orch-test-{uuid.uuid4().hex[:8]}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    return path


def in_group(path: Path, expression: str) -> str:
    code = (
        f"open('{path}/cgroup.procs', 'w').write('0'); from remote_payload.agent import hostinfo; print({expression})"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_a_real_groups_memory_limit_is_the_hosts_memory():
    path = group("memory")
    try:
        (path / "memory.limit_in_bytes").write_text(str(256 << 20))
        memory = eval(in_group(path, "hostinfo.memory()"))
        assert memory["total"] == 256 << 20
        assert (200 << 20) < memory["available"] <= 256 << 20
    finally:
        path.rmdir()


def test_a_real_groups_quota_is_the_hosts_cores():
    path = group("cpu")
    try:
        if not (path / "cpu.cfs_quota_us").exists():
            pytest.skip("no CPU quota in this kernel")
        (path / "cpu.cfs_quota_us").write_text("100000")
        assert in_group(path, "hostinfo.cpus()") == "1\n"
    finally:
        path.rmdir()


MOUNT = "36 25 0:32 {root} {top} rw,nosuid shared:9 - {kind} cgroup rw{options}"


@pytest.mark.parametrize(
    ("membership", "root", "top", "kind", "options", "expected"),
    [
        ("0::/user.slice/a.scope", "/", "/sys/fs/cgroup", "cgroup2", "", "/sys/fs/cgroup/user.slice/a.scope"),
        ("0::/", "/", "/sys/fs/cgroup", "cgroup2", "", "/sys/fs/cgroup"),
        ("0::/../other", "/", "/sys/fs/cgroup", "cgroup2", "", "/sys/fs/other"),
        ("4:memory:/docker/ab", "/docker/ab", "/sys/fs/cgroup/memory", "cgroup", ",memory", "/sys/fs/cgroup/memory"),
        ("4:memory:/docker/ab/x", "/docker/ab", "/cg/memory", "cgroup", ",memory", "/cg/memory/x"),
        ("4:cpu,memory:/a", "/", "/cg/m", "cgroup", ",cpu,memory", "/cg/m/a"),
        ("4:memory:/docker/ab", "/elsewhere", "/cg/memory", "cgroup", ",memory", "/cg/memory"),
    ],
)
def test_the_groups_folder_is_found_in_containers_too(membership, root, top, kind, options, expected):
    mounts = MOUNT.format(root=root, top=top, kind=kind, options=options)
    assert hostinfo.cgroup_of("memory", membership, mounts).folder == expected


def test_no_mounted_controller_is_no_limit():
    assert hostinfo.cgroup_of("memory", "0::/x", MOUNT.format(root="/", top="/c", kind="tmpfs", options="")) is None


def test_the_limits_of_v2_files_are_read(tmp_path):
    files = {"memory.max": "1000\n", "memory.current": "900\n", "memory.stat": "inactive_file 100\nactive_file 50\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert hostinfo._memory_left(str(tmp_path), 2) == (1000, 250)
    (tmp_path / "memory.max").write_text("max\n")
    assert hostinfo._memory_left(str(tmp_path), 2) == (None, None)
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert hostinfo._cpu_quota(str(tmp_path), 2) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert hostinfo._cpu_quota(str(tmp_path), 2) is None


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text_of_proc_is_read_without_a_surprise(membership, mounts):
    hostinfo.cgroup_of("cpu", membership, mounts)
    hostinfo.meminfo(mounts.encode("utf-8", "surrogatepass"))
