"""ansible and pyinfra on the hosts of a benchmark: the same question, by the same ssh configuration and key.

They are no part of this project. Where they are not installed beside this Python, pip gets them into a throw-away
environment below the benchmark's own folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("ansible-core", "pyinfra")
QUESTION = ("python3", "-c", "pass")
INSTALLING = 300
"""seconds that pip may take"""


@dataclass(frozen=True)
class Rival:
    """A command that asks all hosts, with what it needs around it."""

    name: str
    command: list[str]
    environment: dict[str, str]


def rivals(folder: Path, config: Path, key: Path, hosts: Sequence[str]) -> Iterator[Rival]:
    """Those that can be had; why another can't is printed. `hosts` are aliases of the ssh configuration."""
    places = [Path(sys.executable).parent]
    if any(shutil.which(name, path=str(places[0])) is None for name in ("ansible", "pyinfra")):
        places += _installed(folder / "rivals")
    path = os.pathsep.join(map(str, places))
    about = {"ANSIBLE_HOME": str(folder / "ansible"), "ANSIBLE_LOCALHOST_WARNING": "0", "LC_ALL": "C.UTF-8"}
    if ansible := shutil.which("ansible", path=path):
        inventory = folder / "ansible.ini"
        common = f"ansible_ssh_common_args='-F {config}' ansible_python_interpreter=/usr/bin/python3"
        inventory.write_text("".join(f"{host} {common}\n" for host in hosts))
        words = [ansible, "-i", str(inventory), "all", "-f", str(len(hosts)), "-a", " ".join(QUESTION)]
        for module in ("raw", "command"):
            yield Rival(f"ansible -m {module}", [*words, "-m", module], about)
    if pyinfra := shutil.which("pyinfra", path=path):
        inventory = folder / "fleet.py"
        known = str(config.parent / "known")
        data = {"ssh_config_file": str(config), "ssh_key": str(key), "ssh_known_hosts_file": known}
        inventory.write_text(f"fleet = {[(host, data) for host in hosts]!r}\n")
        words = [pyinfra, "-y", "--parallel", str(len(hosts)), str(inventory), "exec", "--", *QUESTION]
        yield Rival("pyinfra exec", words, about)


def _installed(folder: Path) -> list[Path]:
    """The folder of their programs, in an environment that is made now; none, with the reason printed, without pip."""
    commands = [
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *PACKAGES],
    ]
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALLING)
        except subprocess.TimeoutExpired:
            print(f"ansible and pyinfra are not measured: {' '.join(command[-3:])} took more than {INSTALLING} s")
            return []
        if done.returncode:
            reason = (done.stderr or done.stdout).strip().splitlines()[-1:]
            print(f"ansible and pyinfra are not measured: {' '.join(command[-3:])}: {' '.join(reason)}")
            return []
    return [folder / "bin"]
