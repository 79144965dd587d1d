"""What runs cost: starting one, following a huge log, and the supervisor beside an evaluation.

Real OpenSSH hosts in network namespaces (root and Linux). One function a row; each prints its own measurements, and
the last lines are one per goal.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "hosts"), str(ROOT / "tests" / "story")]

import runs_sync  # noqa: E402
from conftest import TestHosts  # noqa: E402
from small import COMMAND, RESULT, Small, wait_until  # noqa: E402
from timing import Measure, Row, at_most  # noqa: E402

TICK = os.sysconf("SC_CLK_TCK")
LAUNCH_GOAL, CORE_GOAL, GROWTH_GOAL = 2.0, 5.0, 2 << 20
SUPERVISOR_CORE_GOAL, SUPERVISOR_MEMORY_GOAL = 0.1, 20.0
LOG_SIZE, LOG_RATE = 2 << 30, 1_000_000
IDLE = "import time; print('begun', flush=True); time.sleep(3600)\n" + RESULT
BARS = f"""\
import os, sys, time
os.ftruncate(1, {LOG_SIZE})  # what came before is never read, so it need not fill a disk
print("begun", flush=True)
bar = "\\r" + " 42%|" + "#" * 40 + "| 420/1000 [00:42<00:58, 10.0it/s, loss=2.31]"
began, written = time.monotonic(), 0
while True:
    while written < {LOG_RATE} * (time.monotonic() - began):
        sys.stdout.write(bar * 40)
        sys.stdout.flush()
        written += 40 * len(bar)
    time.sleep(0.05)
"""


@dataclass(frozen=True)
class Cost:
    """A process over a stretch: per cent of a core, and its memory before and after."""

    core: float
    before: int
    after: int


def cost_of(pids: dict[str, int], seconds: float) -> dict[str, Cost]:
    """What these processes use in the next `seconds`."""
    began = time.monotonic()
    before = {name: (_ticks(pid), _memory(pid)) for name, pid in pids.items()}
    time.sleep(seconds)
    lasted = time.monotonic() - began
    return {
        name: Cost(
            core=100 * (_ticks(pid) - before[name][0]) / TICK / lasted, before=before[name][1], after=_memory(pid)
        )
        for name, pid in pids.items()
    }


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _memory(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


def launch_rows(boxes: Small, seconds: float) -> list[Row]:
    """Launch until the supervisor is confirmed, over a fresh connection, against `ssh HOST true` twice, in turn."""
    from orchestrator import config
    from orchestrator.actions import harness, runs
    from orchestrator.model import Digests
    from orchestrator.ssh.choose import Connections

    boxes.code(IDLE)
    run_id = boxes.detach()
    identity = boxes.file(run_id, "spec.json")["checkpoint"]
    boxes.orch("cancel", run_id, "--grace", "1")
    inventory = config.load_inventory(boxes.folder / "hosts.yaml")
    host, job = inventory.hosts["box"], config.load_job(inventory, "j")
    local, digests = harness.local(job), Digests(checkpoint=identity, harness="h", job="j", data="d")

    def launch(number: int) -> None:
        with Connections(inventory.timeouts) as connections:
            run = runs.launch(
                connections.to(host),
                host,
                job,
                key=f"{number:08}-bench",
                training_run="r",
                step=7,
                digests=digests,
                harness=local,
                env={},
                secrets={},
                windows=[],
                beside=None,
                trains={"allowed": False, "runs": []},
                origin="",
                source=None,
                timeouts=inventory.timeouts,
            )
        assert run.state == "running", run
        started.append(run.id)

    started: list[str] = []
    ssh = ["ssh", "-F", os.environ["ORCH_SSH_CONFIG"], "--", "root@eval", "true"]
    ratios, times = [], []
    for number in range(max(4, int(seconds / 4))):
        twice = Measure().seconds(lambda: [subprocess.run(ssh, check=True) for _ in range(2)])
        once = Measure().seconds(lambda number=number: launch(number))  # type: ignore[misc]
        boxes.orch("cancel", started[-1], "--grace", "1")
        if number:  # the first warms caches
            times.append((once, twice))
            ratios.append(once / twice)
    launch_s, ssh_s = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"launch {launch_s * 1000:.0f} ms, ssh true twice {ssh_s * 1000:.0f} ms (medians, n {len(times)})")
    return [at_most("launch_against_ssh_twice", statistics.median(ratios), LAUNCH_GOAL)]


def log_rows(boxes: Small, seconds: float) -> list[Row]:
    """`orch logs -f` of a log of 2 GB that grows by 1 MB/s of progress bars: CPU and memory at both ends."""
    boxes.code(BARS)
    run_id = boxes.detach()
    _wait_until_begun(boxes, run_id)
    variables = boxes.variables()
    typed = subprocess.Popen(
        [*COMMAND, "logs", "-f", run_id], cwd=boxes.folder, env=variables, stdout=subprocess.DEVNULL
    )
    try:
        time.sleep(8)  # both have started up
        wait_until(lambda: len(_agents(boxes)) == 1)  # those of earlier commands have gone
        (agent,) = _agents(boxes)
        log = boxes.runs / run_id / "log"
        size, began = log.stat().st_size, time.monotonic()
        found = cost_of({"laptop": typed.pid, "host": agent}, seconds)
        rate = (log.stat().st_size - size) / (time.monotonic() - began)
    finally:
        typed.kill()
        typed.wait()
        boxes.orch("cancel", run_id, "--grace", "1")
    for end, cost in found.items():
        print(f"logs -f, {end}: {cost.core:.2f}% of a core, {cost.before >> 10} KiB, then {cost.after >> 10} KiB")
    print(f"the log of {size} bytes grew by {rate / 1e6:.2f} MB/s")
    growth = max(cost.after - cost.before for cost in found.values())
    return [
        at_most("logs_follow_core_percent", max(cost.core for cost in found.values()), CORE_GOAL),
        at_most("logs_follow_growth_bytes", float(growth), float(GROWTH_GOAL)),
    ]


def supervisor_rows(boxes: Small, seconds: float) -> list[Row]:
    """The supervisor's own cost while an evaluation runs."""
    boxes.code(IDLE)
    run_id = boxes.detach()
    _wait_until_begun(boxes, run_id)
    (supervisor,) = [pid for pid in boxes.processes(run_id) if "supervisor.py" in _command(pid)]
    time.sleep(4)  # the looks at the GPUs are closer together at first
    cost = cost_of({"supervisor": supervisor}, seconds)["supervisor"]
    boxes.orch("cancel", run_id, "--grace", "1")
    print(f"supervisor: {cost.core:.3f}% of a core, {cost.after >> 10} KiB")
    return [
        at_most("supervisor_core_percent", cost.core, SUPERVISOR_CORE_GOAL),
        at_most("supervisor_megabytes", cost.after / 1e6, SUPERVISOR_MEMORY_GOAL),
    ]


ROWS: dict[str, Callable[[Small, float], list[Row]]] = {
    "launch": launch_rows,
    "logs": log_rows,
    "supervisor": supervisor_rows,
}


def _wait_until_begun(boxes: Small, run_id: str) -> None:
    log = boxes.runs / run_id / "log"

    def begun() -> bool:
        if not log.exists():
            return False
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            return bool(file.read().strip(b"\0"))

    wait_until(begun)


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")


def _agents(boxes: Small) -> list[int]:
    """Agents on the evaluation host."""
    assert boxes.host_process is not None
    own = os.readlink(f"/proc/{boxes.host_process.read_text().strip()}/ns/pid")
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = _command(int(entry.name))
            if os.readlink(entry / "ns" / "pid") == own and command.startswith(f"{sys.executable} -I -S -B -c "):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="*", choices=(*ROWS, "sync"), default=[*ROWS, "sync"])
    parser.add_argument("--seconds", type=float, default=40.0, help="how long each row measures")
    parser.add_argument("--full", action="store_true", help="three minutes each")
    options = parser.parse_args()
    if os.geteuid() != 0 or sys.platform != "linux":
        sys.exit("runs.py needs root on Linux for its hosts")
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as name:
        folder = Path(name)
        hosts = TestHosts(
            prefix=os.environ.get("RF_PREFIX", f"br{os.getpid() % 1000}"),
            network=os.environ.get("RF_NET", "10.96.78"),
            state=folder / "hosts",
        )
        hosts.state.mkdir(mode=0o700)
        os.environ.update(ORCH_SSH_CONFIG=str(hosts.config), ORCH_HOME=str(folder / "state"))
        os.environ.pop("SSH_AUTH_SOCK", None)
        try:
            hosts.up()
            names = [name for name in options.rows if name in ROWS]
            found = list(map(str, measure(hosts, folder, names, 180.0 if options.full else options.seconds)))
            if "sync" in options.rows:
                found += sync_rows(hosts, folder / "sync", 15 if options.full else 7)
        finally:
            hosts.down()
    print(*found, sep="\n")


def sync_rows(hosts: TestHosts, folder: Path, rounds: int) -> list[str]:
    """The rows of runs_sync.py, where what it needs is there."""
    if missing := [tool for tool in ("rsync", "cc") if shutil.which(tool) is None]:
        print(f"sync-harness is not measured: missing {' '.join(missing)}")
        return []
    folder.mkdir()
    return runs_sync.rows(hosts, folder, rounds)


def measure(hosts: TestHosts, folder: Path, names: list[str], seconds: float) -> list[Row]:
    """The rows of these names, on hosts that are up."""
    homes = {name: hosts.state / name / "fs" / "p" / "root" for name in ("train", "eval")}
    lines = (
        f"  train: {{ssh: root@train, roles: [train], python: {sys.executable}}}\n"
        f"  box: {{ssh: root@eval, roles: [eval], python: {sys.executable}, workdir: ~/orch}}\n"
    )
    boxes = Small(
        folder=folder / "laptop",
        train=homes["train"],
        evaluate=homes["eval"],
        hosts=lines,
        inside={"train": "/root", "evaluate": "/root"},
        host_process=hosts.state / "eval" / "pid",
        timeouts="{poll: 1s}",
    )
    boxes.furnish()
    try:
        return [row for name in names for row in ROWS[name](boxes, seconds)]
    finally:
        boxes.close()


if __name__ == "__main__":
    main()
