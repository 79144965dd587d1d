"""What a live training feels of orch, beside what it feels of scp and of `nice -n 19`.

Real OpenSSH hosts in network namespaces, the real trainer (root and Linux, 2 cores or more). The training box has one
core (or --cores), all of it the trainer's; laptop and evaluation box have the others. Windows with orch's work and
without alternate (stop and go). Waiting is the kernel's own count of the time that the trainer's threads could have run
and did not.
Default: 4 pairs of windows of 3 s, a checkpoint of 0.75 GB. --full: 80 pairs of 1.5 s (a machine's own speed may swing
by a fifth for seconds, so short windows side by side and many of them), 8 of 20 s where commands are typed (as long as
a look takes on a full core), 3.75 GB; about an hour, a third of it with --goals.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from harm_looks import while_looking
from neighbours import (
    EVERY,
    ROOT,
    Neighbour,
    Pairs,
    Training,
    alternate,
    listed,
    pids_of,
    pin,
    received,
    wait_for,
    working,
)

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "hosts")]

from conftest import TestHosts  # noqa: E402
from timing import Row, at_most, no_less  # noqa: E402
from tracing import offences, processes, traced  # noqa: E402

WHOLE = 3_750_000_000
"""bytes of --full"""
EVICTING = (400_000_000, 250_000_000, 420_000_000)
"""bytes of the checkpoint, of the loader's data, and of the box's memory: both files don't fit"""
BURN = """
import os, torch
torch.set_num_threads(os.cpu_count())
a = torch.randn(1024, 1024)
while True: a @ a
"""
FORCED = """
import json, os, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/tests/unit/runs"]
from pathlib import Path
from evalhost import HARNESS, EvalHost, stage, write_files
from remote_payload.agent import identity
pid = int(sys.argv[2])
host = EvalHost(Path("/root/forced"))
write_files(host.remote, HARNESS)
stage(host.workdir)
training = {"name": "dflash", "identity": identity.of_pid(pid), "ranks": [pid], "log": "/root/train.log",
            "progress": None}
row = host.launch(["{python}", "-c", sys.argv[3]], beside={"trainings": [training], "unseen": []})["run"]
print(json.dumps({"folder": row["folder"], "held": row["rung"]}))
"""
PYTHONPATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
NO_GOAL = ("tunnel, with back-off", "relay, with back-off")
INVENTORY = """\
hosts:
  train: {{ssh: root@train, roles: [train], python: {python}}}
  eval: {{ssh: root@eval, roles: [eval], python: {python}, workdir: ~/orch}}
runs:
  dflash: {{host: train, checkpoints: /root/bench, log: /root/train.log, process: {{pidfile: /root/train.pid}}}}
"""


@dataclass
class Bench:
    """The hosts, the project that commands are typed in, and how long to measure."""

    hosts: TestHosts
    project: Path
    rounds: int
    seconds: float
    looks: tuple[int, float]
    """rounds and seconds where commands are typed"""
    goals: bool
    """only rows with a goal"""
    device: str
    """that the training is on"""
    own: frozenset[int]
    """cores of the training box"""
    late: float
    """monotonic time after which rows without a goal are left out"""

    def orch(self, *words: str) -> None:
        """Type a command on the laptop; a wrong one ends the benchmark."""
        code = "from orchestrator.cli import main; main()"
        environment = {**os.environ, "ORCH_HOME": str(self.project / "state"), "PYTHONPATH": PYTHONPATH}
        done = subprocess.run(
            [sys.executable, "-c", code, *words], cwd=self.project, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"orch {' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}")

    def shipping(self, transfer: str, root: str = "/root/bench", times: int = 1_000_000) -> list[str]:
        """The program that ships again and again."""
        return [sys.executable, str(HERE / "ship_again.py"), transfer, root, str(times)]

    def on_train(self, command: str) -> list[str]:
        """A command line of the training box, typed through ssh."""
        return ["ssh", "-F", str(self.hosts.config), "root@train", command]

    def scp(self, path: str = "/root/bench/step_1/checkpoint.pt") -> str:
        return (
            f"scp -q -i /root/bench-key -o BatchMode=yes -o UserKnownHostsFile=/root/bench-known {path} root@eval:copy"
        )


def while_orch_works(bench: Bench) -> list[Row]:
    """status, checkpoints and shipping, with `ssh HOST true`, scp and plain nice beside them."""
    hosts, again = bench.hosts, f"while :; do {bench.scp()}; done"
    nice = shlex.join(["nice", "-n", "19", "sh", "-c", again])
    rivals = {
        "scp": bench.on_train(again),
        "nice -n 19 scp": bench.on_train(nice),
        "tunnel, with back-off": bench.shipping("tunnel"),
        "relay, with back-off": bench.shipping("relay"),
    }
    programs = {"direct": bench.shipping("direct"), **({} if bench.goals else rivals)}
    found: dict[str, Pairs] = {}
    with Training(hosts, bench.own, len(bench.own), bench.device) as training:
        alternate(training, Neighbour("nobody", hosts, frozenset(pids_of(hosts, "train"))), bench.rounds, bench.seconds)
        found.update(while_looking(bench, training))
        for name, words in programs.items():
            if name in NO_GOAL and time.monotonic() > bench.late:
                print(f"{name}: left out, the machine is slow today", flush=True)
                continue
            with working(name, hosts, words) as neighbour:
                came = received(hosts)
                found[name] = alternate(training, neighbour, bench.rounds, bench.seconds)
                moved = (received(hosts) - came) / 1e6 / (bench.rounds * bench.seconds)
            print(f"  {moved:.1f} MB/s while it went", flush=True)
            hosts.sh("eval", "rm -rf /root/orch /root/copy")
    return [
        at_most("wait_while_status_and_checkpoints", found["looks"].wait, 0.03),
        at_most("wait_while_shipping_direct", found["direct"].wait, 0.03),
        no_less("steps_while_status_and_checkpoints", found["looks"].ratio, 0.97),
        no_less("steps_while_shipping_direct", found["direct"].ratio, 0.97),
    ]


class Evaluation(Neighbour):
    """The processes of an evaluation, without the supervisor that watches it."""

    def others(self) -> list[int]:
        mark = b"torch.set_num_threads(os.cpu_count())"
        new = (pid for pid in super().others() if Path(f"/proc/{pid}").exists())
        return [pid for pid in new if mark in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def forced(bench: Bench) -> list[Row]:
    """An evaluation on the training host, as many threads as there are cores, beside a training that has them all."""
    hosts, everywhere = bench.hosts, listed(EVERY)
    pin(pids_of(hosts, "train"), EVERY)
    with Training(hosts, EVERY, len(EVERY), bench.device) as training:
        before = frozenset(pids_of(hosts, "train"))
        free = shlex.join([sys.executable, "-c", BURN])
        with ending(Evaluation("evaluation without limits", hosts, before)) as neighbour:
            hosts.sh("train", f"taskset -c {everywhere} setsid {free} </dev/null >/dev/null 2>&1 &")
            wait_for(lambda: bool(neighbour.others()), 30, "the evaluation")
            alternate(training, neighbour, bench.rounds, bench.seconds)
        with ending(Evaluation("evaluation with limits", hosts, before)) as neighbour:
            words = ["taskset", "-c", everywhere, sys.executable, "-c", FORCED, str(ROOT), str(training.inside), BURN]
            said = hosts.sh("train", shlex.join(words)).stdout
            print(f"  {said.strip()}", flush=True)
            wait_for(lambda: bool(neighbour.others()), 30, "the evaluation")
            held = alternate(training, neighbour, bench.rounds, bench.seconds)
            if not neighbour.others():
                print(hosts.sh("train", "cat /root/forced/orch/runs/*/exit.json").stdout)
    pin(pids_of(hosts, "train"), bench.own)  # as the rows after this one expect it
    return [no_less("steps_beside_forced_evaluation", held.ratio, 0.9)]


@contextmanager
def ending(neighbour: Neighbour) -> Iterator[Neighbour]:
    """Ends the neighbour's processes, and with them a supervisor that has nothing left to watch."""
    try:
        yield neighbour
    finally:
        neighbour.go()
        for pid in neighbour.others():
            os.kill(pid, 9)
        wait_for(lambda: not neighbour.others(), 10, f"the end of the {neighbour.name}")


def pages(bench: Bench) -> list[Row]:
    """Pages of a data loader that a shipment drives out of a box whose memory holds not both."""
    hosts, (checkpoint, data, memory) = bench.hosts, EVICTING
    size = (checkpoint + data) * 5 // 4 // 2**20
    sh = hosts.sh
    sh("train", f"mkdir -p /root/disk && truncate -s {size}m /root/image && mkfs.ext4 -q /root/image")
    sh("train", "mount -o loop /root/image /root/disk && mkdir -p /root/disk/bench/step_1")
    sh("train", f"head -c {data} /dev/urandom > /root/disk/data")
    make_checkpoint(bench.hosts.state / "train" / "fs" / "p" / "root" / "small.pt", checkpoint)
    sh("train", "mv /root/small.pt /root/disk/bench/step_1/checkpoint.pt; umount /root/disk")
    hosts.limit("train", str(memory))
    lost = {}
    ways = {
        "scp": bench.on_train(bench.scp("/root/disk/bench/step_1/checkpoint.pt")),
        "orch": bench.shipping("direct", "/root/disk/bench", 1),
    }
    for name, words in ways.items():
        sh("train", "mount -o loop,noatime /root/image /root/disk")  # nothing of it is in the page cache
        subprocess.run(bench.on_train("cat /root/disk/data > /dev/null"), check=True)
        before = cached(hosts, "/root/disk/data")
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        after = cached(hosts, "/root/disk/data")
        lost[name] = 1 - after / max(before, 1)
        print(f"{name}: {before / 1e6:.0f} MB of {data / 1e6:.0f} in the page cache, {after / 1e6:.0f} afterwards")
        sh("eval", "rm -rf /root/orch /root/copy")
        sh("train", "umount /root/disk")
    sh("train", "rm /root/image")
    proof = "" if lost["scp"] > 0.1 else " (scp evicts little here, so this proves nothing)"
    print(f"evicted by scp {lost['scp']:.3f}, by orch {lost['orch']:.3f}{proof}")
    row = at_most("loader_pages_evicted_by_shipping", lost["orch"], 0.01)
    return [replace(row, reached=False) if proof else row]


def cached(hosts: TestHosts, path: str) -> int:
    """Bytes of a file in the page cache (mincore)."""
    return int(hosts.sh("train", f"fincore -b -n -o RES {path}").stdout or 0)


def trace(bench: Bench) -> list[Row]:
    """Promise 1, by a system-call trace of the training box's sshd while every kind of command is typed."""
    hosts = bench.hosts
    make_checkpoint(hosts.state / "train" / "fs" / "p" / "root" / "tiny" / "step_1" / "checkpoint.pt", 20_000_000)
    with traced(hosts, "train") as folder:
        bench.orch("status", "--json")
        bench.orch("checkpoints", "--json")
        for transfer in ("direct", "tunnel", "relay"):
            subprocess.run(bench.shipping(transfer, "/root/tiny", 1), check=True, stdout=subprocess.DEVNULL)
            hosts.sh("eval", "rm -rf /root/orch")
    mine = processes(folder)
    found = offences(mine)
    print(f"{len(mine)} processes of orch traced on the training box; {len(found)} offences")
    print("\n".join(found[:20]))
    signals = [line for line in found if "kill(" in line or "signal(" in line or "sigqueueinfo(" in line]
    made = [line for line in found if line not in signals and ("O_CREAT" in line or "open" not in line)]
    written = [line for line in found if line not in signals and line not in made]
    nothing = len(mine) < 5
    return [
        at_most(name, len(lines) + nothing, 0)
        for name, lines in (("files_written", written), ("files_created", made), ("signals_sent", signals))
    ]


def make_checkpoint(path: Path, size: int) -> None:
    """A torch file of about so many bytes."""
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    layers = {f"layers.{number}.weight": torch.randn(size // 16 // 4) for number in range(16)}
    torch.save({"model": layers, "step": 1}, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="3.75 GB, longer and more windows")
    parser.add_argument("--rounds", type=int, help="pairs of windows for each neighbour (default 4; --full 80)")
    parser.add_argument("--goals", action="store_true", help="only what has a goal, without rivals")
    parser.add_argument("--rows", default="trace,work,forced,pages", help="which of them, in this order")
    parser.add_argument("--device", default="cpu", help="that the training is on: cpu (default) or cuda")
    parser.add_argument(
        "--cores", type=int, default=1, help="of the training box, all of them the training's (default 1)"
    )
    options = parser.parse_args()
    own = frozenset(sorted(EVERY)[: options.cores])
    if os.geteuid() != 0 or sys.platform != "linux" or own == EVERY:
        sys.exit(f"harm.py needs root on Linux, and more than {options.cores} cores")
    missing = [tool for tool in ("scp", "fincore", "taskset", "strace", "mkfs.ext4") if shutil.which(tool) is None]
    if missing:
        sys.exit(f"missing for this benchmark: {' '.join(missing)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # the hosts go down all the same
    os.environ["RF_SIZE"] = "12g" if options.full else "4g"
    os.sched_setaffinity(0, EVERY - own)  # laptop and evaluation box; what the hosts start inherits it
    with tempfile.TemporaryDirectory(prefix="orch-harm-") as name:
        hosts = TestHosts(prefix=f"hm{os.getpid() % 1000}", network="10.97.31", state=Path(name) / "hosts")
        hosts.state.mkdir(mode=0o700)
        os.environ["ORCH_SSH_CONFIG"] = str(hosts.config)
        os.environ.pop("SSH_AUTH_SOCK", None)
        hosts.up()
        try:
            rounds = options.rounds or (80 if options.full else 4)
            project = Path(name) / "project"
            late = time.monotonic() + (3600 if options.full else 240)
            seconds = 1.5 if options.full else 3.0
            looks = (8, 20.0) if options.full else (rounds, seconds)
            bench = Bench(hosts, project, rounds, seconds, looks, options.goals, options.device, own, late)
            measure(bench, WHOLE if options.full else WHOLE // 5, options.rows.split(","))
        finally:
            hosts.down()


def measure(bench: Bench, size: int, rows: list[str]) -> None:
    home = bench.hosts.state / "train" / "fs" / "p" / "root"
    bench.project.mkdir()
    (bench.project / "hosts.yaml").write_text(INVENTORY.format(python=sys.executable))
    if {"work", "trace"} & set(rows):
        make_checkpoint(home / "bench" / "step_1" / "checkpoint.pt", size)
    else:
        (home / "bench").mkdir()
    shutil.copy(bench.hosts.key, home / "bench-key")
    shutil.copy(bench.hosts.known_hosts, home / "bench-known")
    pin(pids_of(bench.hosts, "train"), bench.own)
    print(
        f"checkpoint {size} B; load {os.getloadavg()[0]:.1f} on {len(EVERY)} cores, {len(bench.own)} of the box",
        flush=True,
    )
    known = {"work": while_orch_works, "forced": forced, "pages": pages, "trace": trace}
    lines = [line for row in rows for line in known[row](bench)]
    print(f"load {os.getloadavg()[0]:.1f} at the end")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
