"""Five real OpenSSH hosts in network namespaces (testhosts.sh), one set a test process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CHECKOUT = HERE.parent.parent
NAMES = {"laptop": 10, "jump": 20, "train": 30, "eval": 40, "oldpy": 50}
TOOLS = ("sshd", "ssh", "ssh-keygen", "ssh-agent", "ssh-add", "ip", "unshare", "nsenter", "setsid", "fish", "tcsh")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class TestHosts:
    """laptop, jump, train, eval and oldpy, with users dev, noisy, fishy, cshy, nosh and root; reachable from here."""

    __test__ = False

    prefix: str
    network: str
    """the first three numbers of their addresses"""
    state: Path

    @property
    def config(self) -> Path:
        """An ssh configuration that names them."""
        return self.state / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.state / "known_hosts"

    @property
    def key(self) -> Path:
        """A private key that logs in as every user."""
        return self.state / "id_ed25519"

    def address(self, host: str) -> str:
        return f"{self.network}.{NAMES[host]}"

    def sh(self, host: str, command: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a shell command on a host as root, without ssh."""
        return self._script("exec", host, "sh", "-c", command, check=check)

    def net(self, host: str, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a program with this machine's files on a host's network."""
        return self._script("net", host, *argv)

    def cut(self, host: str, peer: str | None = None) -> None:
        """Unplug a host, or the way between two: silence, no reset."""
        self._script("cut", host, *([peer] if peer else []))

    def restore(self, host: str, peer: str | None = None) -> None:
        self._script("restore", host, *([peer] if peer else []))

    @contextmanager
    def unplugged(self, host: str, peer: str | None = None) -> Iterator[None]:
        """`cut` for the time of a block."""
        self.cut(host, peer)
        try:
            yield
        finally:
            self.restore(host, peer)

    def reboot(self, host: str) -> None:
        """Everything on the host dies at once; its files stay; it is up again on return."""
        self._script("reboot", host)

    def wipe(self, host: str) -> None:
        """As `reboot`, but it comes back empty."""
        self._script("wipe", host)

    def limit(self, host: str, *limits: str) -> None:
        """MEM_BYTES CPU_PERCENT [CPUS]; nothing lifts the limits."""
        self._script("limit", host, *limits)

    def up(self) -> None:
        self._script("up")
        port = f"{self.prefix}-sw"  # a port of the hosts' switch for this machine
        _ip("link", "add", f"{self.prefix}-me", "type", "veth", "peer", "name", "me", "netns", port)
        _ip("address", "add", f"{self.network}.1/24", "dev", f"{self.prefix}-me")
        _ip("link", "set", f"{self.prefix}-me", "up")
        _ip("-n", port, "link", "set", "me", "master", "br0", "up")

    def down(self) -> None:
        self._script("down", check=False)
        shutil.rmtree(self.state, ignore_errors=True)

    def environment(self) -> dict[str, str]:
        """What testhosts.sh needs to know which hosts are meant."""
        more = os.environ.get("RF_SHARE", "").split(":")
        shared = dict.fromkeys((str(CHECKOUT), sys.prefix, sys.base_prefix, *filter(None, more)))
        own = {
            "PATH": SYSTEM_PATH,
            "RF_PREFIX": self.prefix,
            "RF_STATE": str(self.state),
            "RF_NET": self.network,
            "RF_SHARE": ":".join(folder for folder in shared if folder not in ("/usr", "/usr/local")),
        }
        return {**os.environ, **own}

    def _script(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["bash", str(HERE / "testhosts.sh"), *words],
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if check and done.returncode:
            raise RuntimeError(f"testhosts.sh {' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def _hosts_of(process: int) -> TestHosts:
    taken = _ip("-o", "address", "show") if shutil.which("ip") else ""
    numbers = ((100 + (process + step) // 250 % 100, (process + step) % 250) for step in range(100))
    network = next(f"10.{second}.{third}" for second, third in numbers if f" 10.{second}.{third}." not in taken)
    state = Path(tempfile.gettempdir()) / f"orch-hosts-{process}"
    return TestHosts(prefix=f"th{process:x}", network=network, state=state)


def _remove_leftovers() -> None:
    """Hosts of test processes that were killed before they could take them down."""
    for found in re.findall(r"^th([0-9a-f]+)-sw\b", _ip("netns", "list"), re.MULTILINE):
        process = int(found, 16)
        if not Path(f"/proc/{process}").exists():
            _hosts_of(process).down()


def _why_not() -> str | None:
    """Why real hosts can't be had here, or None. A missing tool on a machine that allows them is an error instead."""
    if not sys.platform.startswith("linux"):
        return "real hosts need Linux"
    if os.geteuid() != 0:
        return "real hosts need root"
    tried = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True, text=True)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else None


@pytest.fixture(scope="session")
def testhosts() -> Iterator[TestHosts]:
    """The hosts, up; ORCH_SSH_CONFIG names their configuration."""
    if reason := _why_not():
        pytest.skip(reason)
    missing = [tool for tool in TOOLS if shutil.which(tool, path=SYSTEM_PATH) is None]
    if missing:
        raise RuntimeError(
            f"missing for the test hosts: {' '.join(missing)}; apt-get install openssh-server iproute2 fish tcsh"
        )
    _remove_leftovers()
    hosts = _hosts_of(os.getpid())
    hosts.state.mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ORCH_SSH_CONFIG", str(hosts.config))
        environment.delenv("SSH_AUTH_SOCK", raising=False)
        try:
            hosts.up()
            yield hosts
        finally:
            hosts.down()


@pytest.fixture(scope="session")
def wanproxy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that adds delay and a bandwidth cap to a TCP connection, built from wanproxy.c."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for wanproxy.c")
    program = tmp_path_factory.mktemp("wanproxy") / "wanproxy"
    subprocess.run([compiler, "-O2", "-pthread", str(HERE / "wanproxy.c"), "-o", str(program)], check=True)
    return program
