"""How long `orch status` on two hosts takes against `ssh HOST true` on both at once, in the same minute, alternating.

Real OpenSSH hosts in network namespaces (root and Linux). Each round starts a fresh interpreter and fresh connections:
no daemon, no master, no cached answer. Prints every median, the ratio, and how much of it is the interpreter's start;
and the same where hosts.yaml was never read before (later calls know what it held, as Python knows its bytecode).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

ROOT = Path(__file__).resolve().parent.parent
TESTHOSTS = ROOT / "tests" / "hosts" / "testhosts.sh"
GOAL = 2.0

HOSTS = """\
hosts:
  train: {roles: [train]}
  eval: {roles: [eval]}
runs:
  demo: {host: train, checkpoints: /root/checkpoints, eval_host: eval}
"""


def timed(command: list[str], environment: dict[str, str], cwd: Path) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        sys.exit(f"{command[-3:]} exit {done.returncode}\n{done.stdout}{done.stderr}")
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--full", action="store_true", help="40 rounds")
    options = parser.parse_args()
    rounds = 40 if options.full else options.rounds
    if os.geteuid() != 0 or sys.platform != "linux":
        sys.exit("start.py needs root on Linux for its hosts")
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as name:
        folder = Path(name)
        state = folder / "hosts"
        environment = {
            **os.environ,
            "RF_PREFIX": f"bs{os.getpid() % 1000}",
            "RF_STATE": str(state),
            "RF_NET": "10.96.77",
            "RF_SIZE": "64m",
            "ORCH_SSH_CONFIG": str(state / "ssh_config"),
            "ORCH_HOME": str(folder / "state"),
        }
        subprocess.run(["bash", str(TESTHOSTS), "up"], env=environment, check=True)
        try:
            measure(folder, environment, rounds)
        finally:
            subprocess.run(["bash", str(TESTHOSTS), "down"], env=environment, check=True)


def measure(folder: Path, environment: dict[str, str], rounds: int) -> None:
    for host in ("train", "eval"):
        subprocess.run(
            ["bash", str(TESTHOSTS), "exec", host, "mkdir", "-p", "/root/checkpoints"], env=environment, check=True
        )
    (folder / "hosts.yaml").write_text(HOSTS)
    inside = ["bash", str(TESTHOSTS), "net", "laptop"]
    config = environment["ORCH_SSH_CONFIG"]
    both = f"ssh -F {config} -- root@train true & a=$!; ssh -F {config} -- root@eval true & wait $! && wait $a"
    orch = [sys.executable, "-c", "from orchestrator.cli import main; main()", "status", "--json"]
    usual = {**environment, "PYTHONPATH": str(ROOT)}
    commands: dict[str, Callable[[], float]] = {
        "ssh true on both": lambda: timed([*inside, "bash", "-c", both], environment, folder),
        "orch status": lambda: timed([*inside, *orch], usual, folder),
        "first, new files": lambda: timed([*inside, *orch], {**usual, "ORCH_HOME": mkdtemp(dir=folder)}, folder),
        "python -c pass": lambda: timed([*inside, sys.executable, "-c", "pass"], environment, folder),
    }
    seconds: dict[str, list[float]] = {what: [] for what in commands}
    for turn in range(rounds + 1):
        for what, run in commands.items():
            spent = run()
            if turn:  # the first round warms the page cache
                seconds[what].append(spent)
    for what, spent_s in seconds.items():
        low, middle, high = min(spent_s), statistics.median(spent_s), max(spent_s)
        print(f"{what:<18} median {middle * 1000:6.0f} ms  ({low * 1000:.0f} to {high * 1000:.0f}, n {len(spent_s)})")
    ratio = statistics.median(a / b for a, b in zip(seconds["orch status"], seconds["ssh true on both"], strict=True))
    print(f"status_against_ssh {ratio:.2f} {GOAL} {'ok' if ratio <= GOAL else 'short'}")


if __name__ == "__main__":
    main()
