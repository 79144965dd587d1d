"""A one-use key, and the host key that it goes with, where no file system has them: in memory files of this process.

`ssh` opens them by their place under /proc. They are written before this process gives up the right to make files
grow (main.py): the kernel counts a memory file as one. Nothing is added to them afterwards.
"""

import os
from typing import Dict

from remote_payload.agent.errors import AgentError

_KEPT: Dict[str, int] = {}


def keep(key: str, known_hosts: str) -> None:
    """Write both. On a system without memory files nothing is kept, and `place` says so."""
    if not hasattr(os, "memfd_create"):
        return
    for name, text in (("key", key), ("known_hosts", known_hosts)):
        try:
            descriptor = os.memfd_create("orch-" + name)
            os.fchmod(descriptor, 0o600)  # ssh takes no key that others may read
            os.write(descriptor, text.encode("ascii"))
        except OSError:
            return
        _KEPT[name] = descriptor


def place(name: str) -> str:
    """The path of `key` or `known_hosts` for a child of this process. Raises AgentError where there is none."""
    if name not in _KEPT:
        raise AgentError("this host has no memory files to keep a key in", kind="transfer")
    return "/proc/%d/fd/%d" % (os.getpid(), _KEPT[name])
