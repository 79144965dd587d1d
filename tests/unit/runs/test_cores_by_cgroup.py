"""The quota of cores that an evaluation is held to by a real cgroup, v1 or v2, where this machine lets one be made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from remote_payload.agent import limits

ROOT = Path(__file__).parents[3]
BUSY = """
import json, os, sys, time
from remote_payload.agent import limits
cage = limits.Cage("quota", {memory}, 1)
cage.build()
read, write = os.pipe()
child = os.fork()
if child == 0:
    cage.enter()
    for _ in range(3):
        os.fork()
    began = time.monotonic()
    while time.monotonic() - began < 2.0:
        pass
    os.write(write, b"%f " % time.process_time())
    os._exit(0)
rung = cage.rung(child)
os.close(write)
used = b""
while part := os.read(read, 4096):
    used += part
print(json.dumps({{"rung": rung, "used": sum(map(float, used.split())), "groups": cage._groups}}))
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
for _ in range(50):
    cage.close()
    if not any(map(os.path.exists, cage._groups)):
        break
    time.sleep(0.02)
"""


def controllers() -> tuple[int, bool]:
    """(version, whether a group that is made here gets the cpu controller) of this process's own cgroup."""
    group = limits._own_group("cpu")
    if group is None:
        return 0, False
    if group.version == 1:
        return 1, os.access(group.folder, os.W_OK)
    enabled = Path(group.folder, "cgroup.subtree_control")
    return 2, enabled.exists() and "cpu" in enabled.read_text().split() and os.access(group.folder, os.W_OK)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("memory", [None, 1 << 30], ids=["cores", "cores and memory"])
def test_eight_busy_processes_get_the_cores_that_were_granted_and_no_more(version: int, memory: int | None) -> None:
    here, usable = controllers()
    if here != version:
        pytest.skip(f"the cpu controller of this machine is in cgroup v{here}" if here else "no cpu controller here")
    if not usable:
        pytest.skip(f"no cgroup v{version} with a cpu controller can be made below this process's own")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core only: nothing shows a quota of one")
    done = subprocess.run(
        [sys.executable, "-c", BUSY.format(memory=memory)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout)
    assert "cores by cgroup" in told["rung"], told
    assert told["used"] < 1.25 * 2.0, "8 processes of 2 s, one core"
    assert not any(map(os.path.exists, told["groups"]))
