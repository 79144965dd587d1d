"""What `ssh` says when it can't connect, read into the error that the user should see. Pure functions on its stderr."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionLost,
    HostKeyError,
    HostUnreachable,
    OrchError,
)

SHOWN = 200
"""characters of ssh's own words in a message"""


class UnknownHostKey(HostKeyError):
    """Nobody has logged in to that host from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Who was asked, for messages: the inventory's name, and what a user types to log in."""

    name: str
    typed: str
    seconds: float
    """time limit of connecting"""


_TO = r"connect to (?:host|address) (\S+) port (\d+): "
NETWORK = (
    (r"Could not resolve hostname (\S+?):", "there is no address for the name {0}"),
    (_TO + "Connection refused", "{0} refuses connections on port {1} (no sshd there?)"),
    (_TO + "(?:Connection|Operation) timed out", "{0} did not answer within {seconds:.0f} s"),
    (_TO + "No route to host", "there is no route to {0}"),
    (_TO + "Network is (?:unreachable|down)", "this machine has no network that leads to {0}"),
    ("Connection timed out during banner exchange", "it is silent: no SSH banner within {seconds:.0f} s"),
    (r"Unable to negotiate with (\S+).*?: (no matching .*)", "no SSH handshake with {0}: {1}"),
    (r"channel \d+: open failed: (.*)", "the jump host could not reach it ({0})"),
)
"""What ssh says, and the sentence for it."""
DROPPED = re.compile(
    r"kex_exchange_identification: |Connection (?:reset|closed) by |banner exchange: |Broken pipe", re.MULTILINE
)
LOST = re.compile(
    r"^(?:Timeout, server .* not responding|Connection to .* closed by remote host|client_loop: |Read from remote host"
    r"|packet_write_\w+: |mux_client_\w+: .*(?:Broken pipe|reset by peer))",
    re.MULTILINE,
)


def could_not_connect(asked: Asked, said: str) -> OrchError:
    """The error for an ssh that ended before it ran the command, from its stderr."""
    return (
        _host_key(asked, said)
        or _authentication(asked, said)
        or _configuration(asked, said)
        or _network(asked, said)
        or HostUnreachable(
            f"{asked.name}: ssh could not connect: {last_words(said)}", hint=f"try: {asked.typed}", host=asked.name
        )
    )


def start_was_dropped(said: str) -> bool:
    """True where sshd dropped the start of a connection, as it does when too many begin at once: worth another try."""
    asked = Asked(name="", typed="", seconds=0)
    known = _host_key(asked, said) or _authentication(asked, said) or _configuration(asked, said)
    return known is None and _network(asked, said) is None and bool(DROPPED.search(said))


def lost(asked: Asked, said: str) -> ConnectionLost:
    """The error for a transport that went away under a command."""
    found = LOST.search(said)
    detail = f" ({last_words(said[found.start() :].splitlines()[0])})" if found else ""
    return ConnectionLost(
        f"{asked.name}: connection lost, result unknown{detail}", hint=f"try: {asked.typed} true", host=asked.name
    )


def ended_with_255(asked: Asked, said: str) -> OrchError:
    """The error for a connection of its own that ended with 255: it never came to be, or it was lost."""
    if LOST.search(said):
        return lost(asked, said)
    error = could_not_connect(asked, said)
    return lost(asked, said) if type(error) is HostUnreachable and "ssh could not connect" in error.message else error


def last_words(said: str) -> str:
    """The last line, printable and short."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    line = lines[-1] if lines else "it said nothing"
    return "".join(letter if letter.isprintable() else "?" for letter in line)[:SHOWN]


# -- host keys --------------------------------------------------------------------------------------------------


def _host_key(asked: Asked, said: str) -> HostKeyError | None:
    if "HOST IDENTIFICATION HAS CHANGED" in said:
        return _changed(asked, said)
    if "REVOKED HOST KEY DETECTED" in said:
        return HostKeyError(
            f"{asked.name}: its host key is marked as revoked in known_hosts",
            hint="ask the machine's owner; do not log in there",
            host=asked.name,
        )
    unknown = re.search(r"No (.+) host key is known for (\S+) and you have requested strict checking", said)
    if unknown:
        return unknown_key(asked, unknown[2], offered_key(said))
    if "Host key verification failed" in said or "requested strict checking" in said:
        return HostKeyError(
            f"{asked.name}: its host key was not accepted", hint=f"ssh says why: {asked.typed}", host=asked.name
        )
    return None


def unknown_key(asked: Asked, name: str, key: str | None) -> UnknownHostKey:
    """The error for a host that nobody has logged in to from here. `key` is its type and fingerprint."""
    shown = f": {key}" if key else ""
    return UnknownHostKey(
        f"{asked.name}: the host key of {name} is not known here{shown}",
        hint=f"compare this fingerprint with one from the machine's owner while typing: {asked.typed}",
        host=asked.name,
    )


def offered_key(said: str) -> str | None:
    """Type and fingerprint of the last host key in the output of `ssh -v`."""
    keys = re.findall(r"Server host key: (\S+ SHA256:\S+)", said)
    return keys[-1] if keys else None


def _changed(asked: Asked, said: str) -> HostKeyError:
    offered = re.search(r"fingerprint for the (\S+) key sent by the remote host is\s+(SHA256:\S+?)\.?\s", said)
    offending = re.search(r"Offending (\S+) key in (.+):(\d+)", said)
    refused = re.search(r"Host key for (\S+) has changed", said)
    name = refused[1] if refused else asked.name
    message = f"{asked.name}: the host key of {name} has changed"
    hint = f"if the machine was reinstalled, compare with its owner, then type: {asked.typed}"
    if offered:
        message += f": it sent {offered[1]} {offered[2]}"
    if offending:
        file, line = offending[2], int(offending[3])
        message += f", but {file}:{line} has {known_fingerprint(Path(file), line) or offending[1]}"
        hint = f'if its owner confirms the new key: ssh-keygen -f "{file}" -R "{name}", then {asked.typed}'
    return HostKeyError(message, hint=hint, host=asked.name)


def known_fingerprint(file: Path, line: int) -> str | None:
    """Type and SHA256 fingerprint (as ssh-keygen -l prints it) of the key in one line of a known_hosts file."""
    try:
        words = file.read_text(encoding="utf-8", errors="replace").splitlines()[line - 1].split()
        blob = next(word for word in words if word.startswith("AAAA"))
        digest = hashlib.sha256(base64.b64decode(blob)).digest()
    except (OSError, IndexError, StopIteration, binascii.Error):
        return None
    return f"{words[words.index(blob) - 1]} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


# -- log-in, configuration, network -----------------------------------------------------------------------------


def _authentication(asked: Asked, said: str) -> AuthenticationFailed | None:
    if "Too many authentication failures" in said:
        return AuthenticationFailed(
            f"{asked.name}: the server closed the log-in after too many keys were offered",
            hint="name the right one in ~/.ssh/config: IdentityFile, and IdentitiesOnly yes",
            host=asked.name,
        )
    denied = re.search(r"Permission denied \(([\w,.@-]*)\)", said)
    if denied:
        return AuthenticationFailed(
            f"{asked.name}: log-in refused (the server takes {denied[1] or 'nothing'})",
            hint=f"log in once by hand to see what it asks for: {asked.typed}",
            host=asked.name,
        )
    return None


def _configuration(asked: Asked, said: str) -> ConfigError | None:
    found = re.search(
        r"^.*(?:Bad configuration option|bad configuration options|Bad owner or permissions on).*$", said, re.M
    )
    if found is None:
        return None
    return ConfigError(f"{asked.name}: ssh can't use its configuration: {last_words(found[0])}", host=asked.name)


def _network(asked: Asked, said: str) -> HostUnreachable | None:
    for pattern, sentence in NETWORK:
        if found := re.search(pattern, said):
            words = [last_words(word or "not allowed") for word in found.groups()]
            message = f"{asked.name}: {sentence.format(*words, seconds=asked.seconds)}"
            return HostUnreachable(message, hint=f"try: {asked.typed}", host=asked.name)
    return None
