"""The rows of answers.py that ask living hosts: `orch status` far away and of many hosts, and an idle `orch watch`.

Real OpenSSH hosts in network namespaces, and 50 sshd on loopback ports of this machine (root and Linux). Each function
measures one row and returns its line `name value goal ok|short`. This machine is laptop and hosts at once: all CPU time
of the hosts is in the times of the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOSTS = ROOT / "tests" / "hosts"
sys.path[:0] = [str(ROOT), str(HOSTS)]

from conftest import TestHosts  # noqa: E402
from rivals import rivals  # noqa: E402
from timing import Row, at_most, command_seconds, in_turn  # noqa: E402

ORCH = [sys.executable, "-c", "from orchestrator.cli import main; main()"]
RTT_MS = 100
MANY = 50
FIRST_PORT = 24100
AGAIN = 40.0
"""seconds that a rival may take to be asked twice"""
PATIENT = "{dead: 60s, agent_dead: 60s}"
"""fifty hosts on a few cores that others use too may all be silent for a while"""
AGENTS = "pgrep -c -f -- '^[^ ]*python[^ ]* -I -S -B -c' || true"
"""counts orch's processes on a host"""
INVENTORY = """\
hosts:
  train: {{ssh: {train}, roles: [train], python: {python}}}
  eval: {{ssh: {evaluate}, roles: [eval]}}
timeouts: {{watch: {watch}s}}
runs: {{demo: {{host: train, checkpoints: /root/checkpoints, eval_host: eval, job: j}}}}
"""
JOB = """\
harness: {local: harness, remote: ~/harness}
command: ["{python}", evaluate.py, "{checkpoint}", "{result}"]
"""
GROUP = """
import json, sys
from fabric import ThreadingGroup
user, key, ports = json.loads(sys.argv[1])
places = [f"{user}@127.0.0.1:{port}" for port in ports]
group = ThreadingGroup(*places, connect_kwargs={"key_filename": key, "allow_agent": False})
done = group.run("python3 -c pass", hide=True)
sys.exit(len(done.failed))
"""


@dataclass(frozen=True)
class Bench:
    """Test hosts, and a folder for projects and for what orch remembers."""

    hosts: TestHosts
    folder: Path

    def project(
        self,
        name: str,
        watch: float = 60,
        train: str = "train",
        evaluate: str = "eval",
        python: str = "python3",
    ) -> Path:
        """A folder to type orch in."""
        made = self.folder / name
        (made / "jobs").mkdir(parents=True)
        (made / "harness").mkdir()
        (made / "harness" / "evaluate.py").write_text("pass\n")
        (made / "jobs" / "j.yaml").write_text(JOB)
        given = {"train": train, "evaluate": evaluate, "watch": watch, "python": python}
        (made / "hosts.yaml").write_text(INVENTORY.format(**given))
        return made

    def variables(self, config: Path | None = None, state: str = "state") -> dict[str, str]:
        own = {"ORCH_HOME": str(self.folder / state), "PYTHONPATH": str(ROOT)}
        return {**os.environ, **own, "ORCH_SSH_CONFIG": str(config or self.hosts.config)}


def _seconds(command: list[str], environment: dict[str, str], cwd: Path) -> float:
    return command_seconds(command, environment, cwd, limit=300)


# -- orch status on two hosts at RTT 100 ms ------------------------------------------------------------------------


def status_over_a_wan(bench: Bench, rounds: int = 9) -> Row:
    """Round trips that a status of two hosts waits for, beside its local start: imports, and what a near host takes."""
    project = bench.project("wan", train="trainwan", evaluate="evalwan")
    near = bench.project("near")
    status = [*ORCH, "status", "--json"]
    start = "import orchestrator.cli, orchestrator.workflows.status, orchestrator.ssh.fabric_link"
    start += ", orchestrator.ssh.fabric_channel, orchestrator.reports.documents"
    with far_away(bench) as config:
        far = bench.variables(config)
        seconds = in_turn(
            {
                "the local start: imports alone": lambda: _seconds([sys.executable, "-c", start], far, project),
                "orch status, no delay": lambda: _seconds(status, bench.variables(), near),
                f"orch status, RTT {RTT_MS} ms": lambda: _seconds(status, far, project),
            },
            rounds,
        )
    alone, close, wide = (
        min(spent) for spent in seconds.values()
    )  # a busy machine only adds to what must be waited for
    trips = (wide - alone) / RTT_MS * 1000
    print(
        f"the least: {(wide - close) / RTT_MS * 1000:.1f} RTT more than without delay; {trips:.1f} beside the imports"
    )
    return at_most("status_round_trips_at_100_ms", trips, 12)


@contextmanager
def far_away(bench: Bench) -> Iterator[Path]:
    """An ssh configuration in which trainwan and evalwan are the hosts behind a delay."""
    program = bench.folder / "wanproxy"
    subprocess.run(["cc", "-O2", "-pthread", str(HOSTS / "wanproxy.c"), "-o", str(program)], check=True)
    words, proxies = [bench.hosts.config.read_text()], []
    for host in ("train", "eval"):
        address = bench.hosts.address(host)
        command = [str(program), "-l", "2222", "-b", address, "-t", f"{address}:22", "-d", str(RTT_MS / 2)]
        script = ["bash", str(HOSTS / "testhosts.sh"), "net", host, *command]
        proxies.append(subprocess.Popen(script, env=bench.hosts.environment(), stdin=subprocess.DEVNULL))
        words.append(f"Host {host}wan\n  HostName {address}\n  Port 2222\n  User root\n  HostKeyAlias {host}")
    config = bench.folder / "wan_config"
    config.write_text("\n".join(words) + "\n")
    time.sleep(0.5)
    try:
        yield config
    finally:
        for proxy in proxies:
            proxy.terminate()
            proxy.wait()


# -- orch status of fifty hosts ------------------------------------------------------------------------------------


def status_of_fifty(bench: Bench, rounds: int = 3) -> Row:
    """Against fabric's own group with `python3 -c pass`, in the same run; ansible and pyinfra beside it.

    Those two run twice where that is quick: at first without a connection, then ansible with those that it has kept.
    """
    project = bench.folder / "fifty"
    project.mkdir()
    with many_sshd(bench.folder / "sshd") as (config, key, ports):
        hosts = [f"h{number}" for number in range(len(ports))]
        rows = "".join(f"  {host}: {{roles: [eval]}}\n" for host in hosts)
        (project / "hosts.yaml").write_text(f"timeouts: {PATIENT}\nhosts:\n{rows}")
        environment = bench.variables(config)
        told = json.dumps(["root", str(key), ports])
        commands: dict[str, Callable[[], float]] = {
            "orch status": lambda: _seconds([*ORCH, "status", "--json"], environment, project),
            "fabric ThreadingGroup, python3 -c pass": lambda: _seconds(
                [sys.executable, "-W", "ignore", "-c", GROUP, told], environment, project
            ),
        }
        seconds = in_turn(commands, rounds)
        for rival in rivals(project, config, key, hosts):
            about = {**environment, **rival.environment}
            try:
                cold = _seconds(rival.command, about, project)
                again = f", again {_seconds(rival.command, about, project):5.2f} s" if cold < AGAIN else ""
                print(f"{rival.name}, python3 -c pass".ljust(46), f"{cold:5.2f} s{again}")
            except (SystemExit, subprocess.TimeoutExpired) as error:
                print(f"{rival.name} failed: {str(error)[-500:]}")
    ours, theirs = (statistics.median(spent) for spent in seconds.values())
    return at_most("status_of_50_against_a_fabric_group", ours / theirs, 2)


@contextmanager
def many_sshd(folder: Path) -> Iterator[tuple[Path, Path, list[int]]]:
    """MANY sshd on ports of 127.0.0.1: an ssh configuration that names h0, h1 ..., the key that logs in, the ports."""
    folder.mkdir(mode=0o700)
    for name in ("id", "hostkey"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    host_key = (folder / "hostkey.pub").read_text().split()[:2]
    ports = list(range(FIRST_PORT, FIRST_PORT + MANY))
    settings = ["UsePAM no", "StrictModes no", "UseDNS no", f"AuthorizedKeysFile {folder / 'id.pub'}"]
    settings += [
        f"HostKey {folder / 'hostkey'}",
        "PidFile none",
        "MaxStartups 100",
        "PermitRootLogin prohibit-password",
    ]
    words = [f"IdentityFile {folder / 'id'}", f"UserKnownHostsFile {folder / 'known'}", "StrictHostKeyChecking yes"]
    (folder / "known").write_text("".join(f"[127.0.0.1]:{port} {' '.join(host_key)}\n" for port in ports))
    Path("/run/sshd").mkdir(exist_ok=True)
    with ExitStack() as running:
        for number, port in enumerate(ports):
            own = folder / f"sshd_{port}"
            own.write_text("\n".join([*settings, f"Port {port}", "ListenAddress 127.0.0.1"]) + "\n")
            log = running.enter_context((folder / f"log_{port}").open("wb"))
            command = ["/usr/sbin/sshd", "-D", "-e", "-f", str(own)]
            sshd = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
            running.callback(sshd.wait)
            running.callback(sshd.terminate)
            words.append(f"Host h{number}\n  HostName 127.0.0.1\n  Port {port}\n  User root")
        config = folder / "config"
        config.write_text("\n".join(words) + "\n")
        time.sleep(2)
        yield config, folder / "id", ports


# -- orch watch, idle ----------------------------------------------------------------------------------------------


def watch_idle(bench: Bench, seconds: float = 90) -> list[Row]:
    """CPU of an idle watch for an hour at one look a minute, from the cost of a look and of a second without one."""
    home = bench.hosts.state / "train" / "fs" / "p" / "root"
    (home / "checkpoints").mkdir(exist_ok=True)
    (home / "counted").write_text('#!/bin/sh\necho >> /root/looks\nexec python3 "$@"\n')
    (home / "counted").chmod(0o755)
    looking = watched(bench, "often", 3.0, seconds)
    resting = watched(bench, "seldom", 3600.0, seconds)
    rest = resting.cpu / seconds
    look = max(0.0, looking.cpu - rest * seconds) / max(1, looking.looks)
    hour = 60 * look + 3600 * rest
    print(f"a look {look * 1000:.1f} ms of CPU (n {looking.looks}), an hour of rest {3600 * rest:.2f} s")
    print(f"looks while it rested: {resting.looks}")
    return [
        at_most("watch_idle_cpu_s_per_hour", hour, 5),
        at_most("watch_connections", max(len(looking.ports), len(resting.ports)), 1),
        at_most("watch_processes_between_looks", resting.agents, 0),
    ]


@dataclass(frozen=True)
class Seen:
    """Of a watch for some time: CPU seconds, looks, local ports of its connections, most agents at once over there."""

    cpu: float
    looks: int
    ports: frozenset[str]
    agents: int


def watched(bench: Bench, name: str, interval: float, seconds: float) -> Seen:
    """A watch with this interval, from its first look on."""
    project = bench.project(name, watch=interval, python="/root/counted")
    looks = bench.hosts.state / "train" / "fs" / "p" / "root" / "looks"
    command = [*ORCH, "watch", "demo", "--json"]
    environment = bench.variables(state=f"state-{name}")
    typed = subprocess.Popen(
        command,
        cwd=project,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not list(bench.folder.glob(f"state-{name}/watch/*.json")):
            time.sleep(0.2)
        time.sleep(1)
        ports: set[str] = set()
        agents, before, counted = 0, cpu(typed.pid), looks.stat().st_size
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            ports |= connections(typed.pid, bench.hosts.address("train"))
            agents = max(agents, int(bench.hosts.sh("train", AGENTS).stdout or 0))
            time.sleep(2)
        return Seen(cpu(typed.pid) - before, looks.stat().st_size - counted, frozenset(ports), agents)
    finally:
        typed.terminate()
        typed.wait(timeout=30)


def cpu(pid: int) -> float:
    """Seconds of CPU of a process, its ended threads and its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def connections(pid: int, address: str) -> set[str]:
    """Local ends of a process's connections to an address."""
    told = subprocess.run(["ss", "-Htnp", "dst", address], capture_output=True, text=True, check=True).stdout
    return {row.split()[3] for row in told.splitlines() if f"pid={pid}," in row and row.startswith("ESTAB")}


ROWS = ("wan", "fifty", "idle")


def rows(bench: Bench, wanted: tuple[str, ...] = ROWS, *, full: bool = False) -> list[str]:
    """The lines of these rows; `full` takes longer."""
    lines: list[Row] = []
    if "wan" in wanted:
        lines.append(status_over_a_wan(bench, rounds=15 if full else 9))
    if "fifty" in wanted:
        lines.append(status_of_fifty(bench, rounds=7 if full else 3))
    if "idle" in wanted:
        lines += watch_idle(bench, seconds=900 if full else 90)
    return list(map(str, lines))


@contextmanager
def bench_hosts(prefix: str, network: str) -> Iterator[Bench]:
    """Hosts that are up for the time of a block."""
    if os.geteuid() != 0 or sys.platform != "linux":
        sys.exit("this benchmark needs root on Linux for its hosts")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that hosts are taken down
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as name:
        folder = Path(name)
        hosts = TestHosts(prefix=prefix, network=network, state=folder / "hosts")
        hosts.state.mkdir(mode=0o700)
        os.environ.pop("SSH_AUTH_SOCK", None)
        hosts.up()
        try:
            yield Bench(hosts=hosts, folder=folder)
        finally:
            hosts.down()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="more rounds, an idle quarter of an hour")
    parser.add_argument("--only", choices=ROWS, action="append", help="one of the rows")
    options = parser.parse_args()
    wanted = tuple(options.only or ROWS)
    with bench_hosts(f"bl{os.getpid() % 1000}", "10.96.79") as bench:
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        lines = rows(bench, wanted, full=options.full)
        print(f"load {os.getloadavg()[0]:.1f} at the end")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
