"""How `ssh` is called: one place for its options. OpenSSH's own configuration stays the truth for everything else."""

from __future__ import annotations

import math
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache

from orchestrator.model import Timeouts
from orchestrator.ssh.resolve import Settings, option_argv, parse_options, target_argv

NO_MULTIPLEXING = ("-S", "none")

PREFERRED = {
    "ciphers": ("Ciphers", ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")),
    "kexalgorithms": ("KexAlgorithms", ("mlkem768x25519-sha256", "curve25519-sha256")),
}
"""By the names of `ssh -G`: what costs the least CPU time. AES-GCM needs about half of ChaCha20's per byte, curve25519
an eighth of sntrup761's per connection."""

ONLY_THE_COMMAND = (
    *("-T", "-x", "-o", "ForwardAgent=no", "-o", "ClearAllForwardings=yes"),
    *("-o", "PermitLocalCommand=no", "-o", "RemoteCommand=none", "-o", "LogLevel=INFO"),
)


def ssh_argv(
    settings: Settings,
    timeouts: Timeouts,
    command: str | None,
    *,
    control: Sequence[str] = NO_MULTIPLEXING,
    batch: bool = True,
    verbose: bool = False,
    forward: str = "",
) -> list[str]:
    """`ssh` to a host. `command` is for the login shell there; None means that there is none (a master, or `-O`).

    Host keys of every hop are checked and unknown ones refused; nothing but the command's three streams is forwarded,
    and the one port of the host that `forward` names (as for -R); with `batch`, ssh asks the user nothing.
    """
    common = _common(timeouts, batch=batch, verbose=verbose)
    return [
        "ssh",
        *option_argv(settings.config),
        *common,
        *_fast_algorithms(settings.options),
        *_through(settings.hops, common),
        *(_with_a_port(forward) if forward else ONLY_THE_COMMAND),
        *control,
        *(["-N"] if command is None else []),
        *target_argv(settings.target),
        *([] if command is None else [command]),
    ]


def _with_a_port(forward: str) -> list[str]:
    """The port is asked for, or the connection ends. Forwardings of the user's configuration are not wanted, but only
    `ClearAllForwardings`, which would take ours too, keeps them away: one that fails would end the connection."""
    instead = {"ClearAllForwardings=yes": "ExitOnForwardFailure=yes"}
    return [*(instead.get(word, word) for word in ONLY_THE_COMMAND), "-R", forward]


def _common(timeouts: Timeouts, *, batch: bool, verbose: bool) -> list[str]:
    interval = max(1, math.floor(timeouts.heartbeat))
    values = {
        "BatchMode": "yes" if batch else "no",
        "StrictHostKeyChecking": "yes",
        "ControlMaster": "no",
        "ConnectTimeout": max(1, math.ceil(timeouts.connect)),
        "ServerAliveInterval": interval,
        "ServerAliveCountMax": max(1, math.floor(timeouts.dead / interval)),
    }
    given = [word for name, value in values.items() for word in ("-o", f"{name}={value}")]
    return [*(["-v"] if verbose else []), *given]


def _through(hops: Sequence[Settings], common: Sequence[str]) -> list[str]:
    """ProxyJump written out as ProxyCommand, so that the same strictness and limits hold for the hops.

    Every level expands % once, so the words of inner levels carry it doubled.
    """
    if not hops:
        return []
    hop = hops[-1]
    inner = ["ssh", *option_argv(hop.config), *common, *_through(hops[:-1], common)]
    place = target_argv(hop.target)
    words = [word.replace("%", "%%") for word in inner]
    command = shlex.join([*words, "-W", "[%h]:%p", *(word.replace("%", "%%") for word in place)])
    return ["-o", f"ProxyCommand={command}"]


def _fast_algorithms(options: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The fastest first, where neither the user nor the system chose an order."""
    chosen: list[str] = []
    for key, (option, fastest) in PREFERRED.items():
        offered = options.get(key, ("",))[-1]
        names = offered.split(",")
        first = [name for name in fastest if name in names]
        if first and offered == _built_in().get(key, ("",))[-1]:
            chosen += ["-o", f"{option}={','.join([*first, *(name for name in names if name not in first)])}"]
    return chosen


@cache
def _built_in() -> Mapping[str, tuple[str, ...]]:
    """What this ssh does where no file says anything."""
    asked = subprocess.run(
        ["ssh", "-F", "none", "-G", "localhost"], stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False
    )
    return parse_options(asked.stdout.decode("utf-8", "replace"))
