"""How long `orch status` on two hosts takes against `ssh HOST true` on both at once, in the same minute, alternating.

Real OpenSSH hosts in network namespaces (root and Linux). Each round starts a fresh interpreter and fresh connections:
no daemon, no master, no cached answer. Prints every median, the ratio, and how much of it is the interpreter's start;
and the same where hosts.yaml was never read before (later calls know what it held, as Python knows its bytecode).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

from timing import at_most, command_seconds, in_turn, ratio

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
    config = environment["ORCH_SSH_CONFIG"]
    both = f"ssh -F {config} -- root@train true & a=$!; ssh -F {config} -- root@eval true & wait $! && wait $a"
    orch = [sys.executable, "-c", "from orchestrator.cli import main; main()", "status", "--json"]
    usual = {**environment, "PYTHONPATH": str(ROOT)}

    def inside(words: list[str], variables: dict[str, str]) -> float:
        laptop = ["bash", str(TESTHOSTS), "net", "laptop"]
        return command_seconds([*laptop, *words], variables, folder, limit=60)

    commands: dict[str, Callable[[], float]] = {
        "ssh true on both": lambda: inside(["bash", "-c", both], environment),
        "orch status": lambda: inside(orch, usual),
        "first, new files": lambda: inside(orch, {**usual, "ORCH_HOME": mkdtemp(dir=folder)}),
        "python -c pass": lambda: inside([sys.executable, "-c", "pass"], environment),
    }
    seconds = in_turn(commands, rounds)
    print(at_most("status_against_ssh", ratio(seconds["orch status"], seconds["ssh true on both"]), GOAL))


if __name__ == "__main__":
    main()
