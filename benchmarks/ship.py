"""How fast, and at what cost, a checkpoint's model goes from a training box to an evaluation box.

Real OpenSSH hosts in network namespaces (root and Linux), disks in memory. Each round runs orch, scp, rsync and one
ssh stream one after the other, in turn; ratios are taken within a round. What orch's time counts: asking both boxes
for the way, proving, reading with CRC, hashing at both ends, up to the rename. All senders run at the lowest priority,
as orch always does there: on an idle machine that changes nothing, on a busy one it keeps the comparison fair.
Default: a fifth of the sizes of --full, at most ten minutes: on a busy machine rounds are left out, and that is said.
--quick: a twenty-fifth and one round, to see that each row works; its ratios say nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HOSTS = ROOT / "tests" / "hosts"
sys.path[:0] = [str(ROOT), str(HOSTS)]

from conftest import TestHosts  # noqa: E402
from timing import Row, at_most, no_less  # noqa: E402

from orchestrator.actions import staging  # noqa: E402
from orchestrator.model import Checkpoint, Host, Job, Timeouts, TransferName  # noqa: E402
from orchestrator.ssh.agent import ask  # noqa: E402
from orchestrator.ssh.choose import Connections  # noqa: E402
from remote_payload.agent.chunks import CHUNK  # noqa: E402

MODEL, WHOLE = 750_000_000, 3_750_000_000
"""bytes of --full"""
WAN_DELAY_MS, WAN_MB = 40, 100
SECONDS = 570.0
"""for all of it without --full"""
SHARE_BESIDE, SHARE_WAN = 0.6, 0.8
"""of these, when the rounds beside scp and rsync are over, and those over a long way"""
MAKE = """
import sys, torch
model, whole, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
layers = {f"layers.{i}.weight": torch.randn(model // 24 // 2, dtype=torch.bfloat16) for i in range(24)}
rest = {f"exp_avg.{i}": torch.randn((whole - model) // 16 // 4) for i in range(16)}
torch.save({"model": layers, "optimizer": rest, "step": 1}, path)
"""
QUIETLY = """
import os, sys
sys.path.insert(0, sys.argv[1])
from remote_payload.agent.quiet import be_quiet
be_quiet()
os.execvp("bash", ["bash", "-c", sys.argv[2]])
"""
JOB = Job(name="bench", path=Path("bench.yaml"), harness_local=Path(), harness_remote="eval", command=("true",))
T = Timeouts()
TRAIN = Host(name="train", ssh="root@train", roles=frozenset({"train"}), python=sys.executable)
EVAL = Host(name="eval", ssh="root@eval", roles=frozenset({"eval"}), python=sys.executable)


@dataclass
class Bench:
    """The hosts, and what is shipped between them."""

    hosts: TestHosts
    folder: Path
    model: int
    root: str = "/root/bench"
    evaluate: Host = EVAL
    train: Host = TRAIN
    began: float = field(default_factory=time.monotonic)
    seconds: float = SECONDS

    def until(self, share: float) -> float:
        """When (time.monotonic()) this share of the time is spent."""
        return self.began + share * self.seconds

    def ship(
        self,
        transfer: TransferName = "direct",
        on_bytes: Callable[[int, int], None] = lambda done, total: None,
        limit_rate: int | None = None,
    ) -> tuple[float, dict[str, Any], int]:
        """(seconds, account, connections) of one shipment into an empty work folder."""
        with Connections(T) as connections:
            source = staging.End(connection=connections.to(self.train), host=self.train, role="train")
            target = staging.End(connection=connections.to(self.evaluate), host=self.evaluate, role="eval")
            asked = {"root": self.root}
            found = ask(source.connection, self.train, "scan", asked, role="train", timeouts=T)["latest"]
            wanted = {key: found[key] for key in ("path", "step", "bytes", "ship_bytes", "identity")}
            checkpoint = Checkpoint(host="train", root=self.root, **wanted)
            began = time.perf_counter()
            choice = staging.choose(source, target, transfer, T, limit_rate)
            account = staging.ship(
                checkpoint, JOB, source, target, T, on_bytes, print, choice=choice, layout=None, limit_rate=limit_rate
            )
            return time.perf_counter() - began, account, choice[0].lanes

    def forget(self) -> None:
        self.hosts.sh("eval", "rm -rf /root/orch /root/copy*")

    def from_train(self, command: str) -> float:
        """Seconds of a command on the training box, at the priority that orch gives itself there."""
        self.forget()
        began = time.perf_counter()
        self.hosts.sh("train", shlex.join([sys.executable, "-I", "-B", "-c", QUIETLY, str(ROOT), command]))
        return time.perf_counter() - began

    def orch(self) -> float:
        self.forget()
        return self.ship()[0]

    @property
    def ssh(self) -> str:
        return "ssh -i /root/bench-key -o BatchMode=yes -o UserKnownHostsFile=/root/bench-known"


def against(bench: Bench, rounds: int) -> list[Row]:
    """orch beside what one would type, in turn."""
    whole, model = f"{bench.root}/step_1/checkpoint.pt", "/root/bench-model.safetensors"
    eval_host, gcm = "root@eval", "-c aes128-gcm@openssh.com"
    rsync = f"rsync -a -e {shlex.quote(bench.ssh)}"
    scp = bench.ssh.replace("ssh -i", "scp -q -i", 1)
    sha = "openssl sha256"
    commands: dict[str, Callable[[], float]] = {
        "orch": bench.orch,
        "cat | ssh gcm, model": lambda: bench.from_train(f"cat {model} | {bench.ssh} {gcm} {eval_host} 'cat > copy'"),
        "the same, hashed at both ends": lambda: bench.from_train(
            f"cat {model} | tee >({sha} >/dev/null) | {bench.ssh} {gcm} {eval_host} 'tee >({sha} >/dev/null) > copy'"
        ),
        "scp, model": lambda: bench.from_train(f"{scp} {model} {eval_host}:copy"),
        "rsync -a, model": lambda: bench.from_train(f"{rsync} {model} {eval_host}:copy"),
        "scp, whole file": lambda: bench.from_train(f"{scp} {whole} {eval_host}:copy"),
        "rsync -a, whole file": lambda: bench.from_train(f"{rsync} {whole} {eval_host}:copy"),
    }
    seconds = rounds_of(commands, rounds, bench.until(SHARE_BESIDE))
    ratio = {
        what: statistics.median(a / b for a, b in zip(s, seconds["orch"], strict=True)) for what, s in seconds.items()
    }
    return [
        no_less("whole_scp_against_orch", ratio["scp, whole file"], 6),
        no_less("whole_rsync_against_orch", ratio["rsync -a, whole file"], 6),
        no_less("same_bytes_cat_ssh_hashed_against_orch", ratio["the same, hashed at both ends"], 0.8),
        no_less("same_bytes_cat_ssh_unhashed_against_orch", ratio["cat | ssh gcm, model"], 0.8),
        no_less("same_bytes_scp_against_orch", ratio["scp, model"], 1.3),
        no_less("same_bytes_rsync_against_orch", ratio["rsync -a, model"], 1.3),
    ]


def rounds_of(commands: dict[str, Callable[[], float]], rounds: int, until: float) -> dict[str, list[float]]:
    """Seconds of each command, at least once; no round begins that would not end by `until` if it takes as long."""
    seconds: dict[str, list[float]] = {what: [] for what in commands}
    for number in range(rounds):
        began = time.monotonic()
        for what, run in commands.items():
            seconds[what].append(run())
        if number + 1 < rounds and 2 * time.monotonic() - began > until:
            print(f"{number + 1} of {rounds} rounds: there is no time for more")
            break
    for what, spent in seconds.items():
        span = f"({min(spent):.2f} to {max(spent):.2f}, n {len(spent)})"
        print(f"{what:<32} median {statistics.median(spent):7.2f} s  {span}", flush=True)
    return seconds


def over_a_wan(bench: Bench, wanproxy: Path, rounds: int) -> list[Row]:
    """RTT 80 ms, 100 MB/s, by a proxy on the training box's own address."""
    here = bench.hosts.address("train")
    there = f"{bench.hosts.address('eval')}:22"
    words = ["-l", "2222", "-b", here, "-t", there, "-d", str(WAN_DELAY_MS), "-r", str(WAN_MB)]
    script = ["bash", str(HOSTS / "testhosts.sh"), "net", "train", str(wanproxy), *words]
    proxy = subprocess.Popen(script, env=bench.hosts.environment(), stdin=subprocess.DEVNULL)
    config = bench.folder / "wan_config"
    far_host = ("Host evalwan", f"HostName {here}", "Port 2222", "User root", "HostKeyAlias eval")
    config.write_text(bench.hosts.config.read_text() + "\n".join(far_host) + "\n")
    direct_config = os.environ["ORCH_SSH_CONFIG"]
    os.environ["ORCH_SSH_CONFIG"] = str(config)
    far = replace(bench, evaluate=replace(bench.evaluate, ssh="evalwan"))
    lanes: list[int] = []

    def orch() -> float:
        bench.forget()
        spent, _, count = far.ship()
        lanes.append(count)
        return spent

    stream = f"{bench.ssh} -c aes128-gcm@openssh.com -o HostKeyAlias=eval -p 2222 root@{here}"
    commands = {
        "orch, 80 ms": orch,
        "cat | ssh gcm, 80 ms": lambda: bench.from_train(f"cat /root/bench-model.safetensors | {stream} 'cat > copy'"),
    }
    try:
        seconds = rounds_of(commands, rounds, bench.until(SHARE_WAN))
    finally:
        proxy.terminate()
        proxy.wait()
        os.environ["ORCH_SSH_CONFIG"] = direct_config
    print(f"connections at 80 ms: {lanes}")
    pairs = zip(seconds["cat | ssh gcm, 80 ms"], seconds["orch, 80 ms"], strict=True)
    return [no_less("wan_one_stream_against_orch", statistics.median(a / b for a, b in pairs), 2.5)]


def what_it_costs(bench: Bench) -> list[Row]:
    """Bytes on the wire, memory and page cache at the source, bytes written there; from a real file system, cold."""
    sh = bench.hosts.sh
    size = (bench.model * WHOLE // MODEL) * 5 // 4 // 2**20
    sh("train", f"mkdir -p /root/disk && truncate -s {size}m /root/image && mkfs.ext4 -q /root/image")
    sh("train", "mount -o loop /root/image /root/disk && cp -r /root/bench/step_1 /root/disk/ && umount /root/disk")
    sh("train", "mount -o loop,noatime /root/image /root/disk")  # nothing of it is in the page cache now
    path = "/root/disk/step_1/checkpoint.pt"
    before = cached(bench, path)
    received = int(sh("eval", "cat /sys/class/net/eth0/statistics/rx_bytes").stdout)
    bench.forget()
    with watched(bench) as seen:
        _, account, _ = replace(bench, root="/root/disk").ship()
    crossed = int(sh("eval", "cat /sys/class/net/eth0/statistics/rx_bytes").stdout) - received
    left = cached(bench, path) - before
    sh("train", "umount /root/disk && rm /root/image")
    print(f"bytes of the model {account['bytes']}, on the evaluation box's wire {crossed}")
    print(f"source: memory {seen['VmHWM']} kB, page cache left {left} B, write_bytes {seen['write_bytes']}")
    return [
        at_most("bytes_crossing_by_model", crossed / account["bytes"], 1.02),
        at_most("source_memory_mb", seen["VmHWM"] / 1000, 64),
        at_most("source_page_cache_left_mb", left / 1e6, 8),
        at_most("source_bytes_written", seen["write_bytes"], 0),
    ]


def cached(bench: Bench, path: str) -> int:
    return int(bench.hosts.sh("train", f"fincore -b -n -o RES {path}").stdout or 0)


@contextmanager
def watched(bench: Bench) -> Iterator[dict[str, int]]:
    """The largest numbers of the agents on the training box meanwhile, from their own /proc."""
    seen = {"VmHWM": 0, "write_bytes": 0}
    over = threading.Event()
    ask_all = (
        "for p in $(pgrep -f -- '^[^ ]*python[^ ]* -I -S -B -c'); do cat /proc/$p/status /proc/$p/io; done 2>/dev/null"
    )

    def look() -> None:
        while not over.wait(0.2):
            for line in bench.hosts.sh("train", ask_all, check=False).stdout.splitlines():
                key, _, value = line.partition(":")
                if key in seen:
                    seen[key] = max(seen[key], int(value.split()[0]))

    watching = threading.Thread(target=look, daemon=True)
    watching.start()
    yield seen
    over.set()
    watching.join()


def resumes(bench: Bench) -> list[Row]:
    """Cut at half, then the same again: bytes beyond the missing ones, in chunks."""
    bench.forget()
    kept = 0

    def half(done: int, total: int) -> None:
        nonlocal kept
        kept = done
        if done >= total / 2:
            bench.hosts.sh("eval", "pkill -KILL -f -- '^[^ ]*python[^ ]* -I -S -B -c'")

    try:
        bench.ship(on_bytes=half, limit_rate=bench.model // 4)
    except Exception as error:
        print(f"cut at {kept}: {error}")
    _, account, _ = bench.ship()
    again = account["sent"]["bytes"] - (account["bytes"] - kept)
    print(f"resumed: {account['sent']['bytes']} sent of {account['bytes']}, {kept} had been reported")
    return [at_most("resume_chunks_sent_twice", again / CHUNK, 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="3.75 GB, 0.75 GB of it model; takes longer")
    size.add_argument("--quick", action="store_true", help="150 MB and one round: only to see that each row works")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if os.geteuid() != 0 or sys.platform != "linux":
        sys.exit("ship.py needs root on Linux for its hosts")
    missing = [tool for tool in ("rsync", "scp", "fincore", "cc", "openssl") if shutil.which(tool) is None]
    if missing:
        sys.exit(f"missing for this benchmark: {' '.join(missing)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # and the hosts are taken down
    scale = 1 if options.full else 25 if options.quick else 5
    rounds = 1 if options.quick else options.rounds
    os.environ["RF_SIZE"] = "14g" if options.full else "4g"
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as name:
        folder = Path(name)
        hosts = TestHosts(prefix=f"bm{os.getpid() % 1000}", network="10.96.78", state=folder / "hosts")
        hosts.state.mkdir(mode=0o700)
        os.environ["ORCH_SSH_CONFIG"] = str(hosts.config)
        os.environ.pop("SSH_AUTH_SOCK", None)
        hosts.up()
        try:
            seconds = math.inf if options.full else SECONDS
            bench = Bench(hosts=hosts, folder=folder, model=MODEL // scale, seconds=seconds)
            measure(bench, WHOLE // scale, rounds)
        finally:
            hosts.down()


def measure(bench: Bench, whole: int, rounds: int) -> None:
    home = bench.hosts.state / "train" / "fs" / "p" / "root"
    (home / "bench" / "step_1").mkdir(parents=True)
    made = [str(bench.model), str(whole), str(home / "bench" / "step_1" / "checkpoint.pt")]
    subprocess.run([sys.executable, "-c", MAKE, *made], check=True)
    with (home / "bench-model.safetensors").open("wb") as file:
        file.write(os.urandom(1_000_000) * (bench.model // 1_000_000))
    shutil.copy(bench.hosts.key, home / "bench-key")
    shutil.copy(bench.hosts.known_hosts, home / "bench-known")
    wanproxy = bench.folder / "wanproxy"
    subprocess.run(["cc", "-O2", "-pthread", str(HOSTS / "wanproxy.c"), "-o", str(wanproxy)], check=True)
    print(f"model {bench.model} B of {whole} B; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    bench.orch()  # warms what is read from this machine's disk
    lines = [
        *against(bench, rounds),
        *over_a_wan(bench, wanproxy, rounds),
        *what_it_costs(bench),
        *resumes(bench),
    ]
    print(f"load {os.getloadavg()[0]:.1f} at the end")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
