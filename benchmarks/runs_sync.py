"""How long `orch sync-harness` of 2,000 files, 3 of them changed, takes at RTT 100 ms against `rsync -a`, in turn.

Real OpenSSH hosts in network namespaces (root and Linux), behind a proxy that delays each direction by 50 ms. Each
round changes three files here and runs both commands, each with a fresh process and a fresh connection, into a folder
of its own on the host. Round trips are counted by what a second proxy, of twice the delay, adds to the time: what the
processors take is no round trip. `rows` is what benchmarks/runs.py calls.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOSTS = ROOT / "tests" / "hosts"
sys.path[:0] = [str(ROOT), str(HOSTS)]

from conftest import TestHosts  # noqa: E402
from timing import Row, at_most, command_seconds, in_turn  # noqa: E402

FILES, CHANGED = 2000, (7, 700, 1900)
RTT_S = 0.1
PORT = 22930
RATIO_GOAL, RTT_GOAL = 1.2, 20
HOSTS_YAML = """\
hosts:
  far: {{ssh: farwan, roles: [eval], python: {python}}}
  twice: {{ssh: twicewan, roles: [eval], python: {python}}}
runs: {{}}
"""
JOB_YAML = """\
harness: {local: harness, remote: /root/synced}
command: ["{python}", file_0.py, "{checkpoint}", "{result}"]
"""


def make_harness(folder: Path) -> None:
    """2,000 small scripts in 40 folders."""
    for number in range(FILES):
        path = folder / f"part_{number % 40}" / f"file_{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# file {number}\n" + f"value = {number}\n" * 60)


def change(folder: Path, turn: int) -> None:
    """Three files get one more line."""
    for number in CHANGED:
        with (folder / f"part_{number % 40}" / f"file_{number}.py").open("a") as file:
            file.write(f"turn = {turn}\n")


@contextmanager
def far_away(hosts: TestHosts, folder: Path) -> Iterator[Path]:
    """An ssh configuration in which `farwan` is the evaluation host, RTT_S away; `twicewan` is twice as far."""
    program = folder / "wanproxy"
    subprocess.run(["cc", "-O2", "-pthread", str(HOSTS / "wanproxy.c"), "-o", str(program)], check=True)
    here = f"{hosts.network}.1"
    config = folder / "far_config"
    text, proxies = hosts.config.read_text(), []
    for name, port, delay_s in (("farwan", PORT, RTT_S / 2), ("twicewan", PORT + 1, RTT_S)):
        target = ("-t", f"{hosts.address('eval')}:22", "-d", str(delay_s * 1000))
        words = [str(program), "-l", str(port), "-b", here, *target]
        proxies.append(subprocess.Popen(words, stdin=subprocess.DEVNULL))
        text += f"Host {name}\nHostName {here}\nPort {port}\nUser root\nHostKeyAlias eval\n"
    config.write_text(text)
    try:
        yield config
    finally:
        for proxy in proxies:
            proxy.terminate()
            proxy.wait()


def rows(hosts: TestHosts, folder: Path, rounds: int) -> list[str]:
    """The goal lines of this benchmark; `folder` is empty, `hosts` are up."""
    project = folder / "sync"
    harness = project / "harness"
    make_harness(harness)
    (project / "jobs").mkdir()
    (project / "hosts.yaml").write_text(HOSTS_YAML.format(python=sys.executable))
    (project / "jobs" / "bench.yaml").write_text(JOB_YAML)
    with far_away(hosts, folder) as config:
        own = {"ORCH_SSH_CONFIG": str(config), "ORCH_HOME": str(folder / "state"), "PYTHONPATH": str(ROOT)}
        environment = {**os.environ, **own}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        orch = [sys.executable, "-c", "from orchestrator.cli import main; main()", "sync-harness", "--yes", "--host"]
        rsync = ["rsync", "-a", "-e", f"ssh -F {shlex.quote(str(config))}", f"{harness}/", "farwan:/root/copied/"]
        true = ["ssh", "-F", str(config), "--", "farwan", "true"]
        commands: dict[str, Callable[[], float]] = {
            "rsync -a": lambda: command_seconds(rsync, environment, project),
            "orch sync-harness": lambda: command_seconds([*orch, "far"], environment, project),
            "the same, twice the RTT": lambda: command_seconds([*orch, "twice"], environment, project),
            "ssh true": lambda: command_seconds(true, environment, project),
        }
        seconds = in_turn(commands, rounds, lambda turn: change(harness, turn))
    pairs = zip(seconds["orch sync-harness"], seconds["rsync -a"], strict=True)
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    added = zip(seconds["the same, twice the RTT"], seconds["orch sync-harness"], strict=True)
    trips = statistics.median(slow - fast for slow, fast in added) / RTT_S
    return [
        str(at_most("sync_harness_against_rsync", ratio, RATIO_GOAL)),
        str(Row("sync_harness_rtts", f"{trips:.1f}", str(RTT_GOAL), trips < RTT_GOAL)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prefix", default=f"by{os.getpid() % 1000}", help="of the hosts' names")
    parser.add_argument("--net", default="10.96.79", help="the first three numbers of their addresses")
    options = parser.parse_args()
    if os.geteuid() != 0 or sys.platform != "linux":
        sys.exit("runs_sync.py needs root on Linux for its hosts")
    if missing := [tool for tool in ("rsync", "cc") if shutil.which(tool) is None]:
        sys.exit(f"missing for this benchmark: {' '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as name:
        folder = Path(name)
        hosts = TestHosts(prefix=options.prefix, network=options.net, state=folder / "hosts")
        hosts.state.mkdir(mode=0o700)
        os.environ.pop("SSH_AUTH_SOCK", None)
        hosts.up()
        try:
            print("\n".join(rows(hosts, folder, options.rounds)))
        finally:
            hosts.down()


if __name__ == "__main__":
    main()
