"""Is this the host's key? The verdicts of OpenSSH over its own known_hosts files; what can't be judged is refused.

`ssh-keygen -F` finds the lines where it is there, else they are read here. Nothing is ever added to a file.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Literal

from orchestrator.errors import HostKeyError
from orchestrator.ssh.resolve import Settings

Verdict = Literal["known", "revoked", "changed", "unknown"]
Marker = Literal["", "@revoked", "@cert-authority"]
_LOOKUP_LIMIT = 20.0
_SIGNATURES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
"""signature algorithms of a key type, where they have names of their own"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKey:
    """A public key as a host shows it: type, and blob as in known_hosts before base64."""

    type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """`SHA256:...`, as OpenSSH prints it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode("ascii").rstrip("=")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """One line of a known_hosts file that speaks of the host."""

    file: Path
    line: int
    name: str
    """the name under which the line was found"""
    marker: Marker
    key: HostKey


def known_names(settings: Settings) -> tuple[str, ...]:
    """Names under which OpenSSH looks for the host: HostKeyAlias alone, else `[host]:port` and then the plain name."""
    alias = settings.one("hostkeyalias")
    if alias:
        return (alias.lower(),)
    host = settings.hostname.lower()
    return (host,) if settings.port == 22 else (f"[{host}]:{settings.port}", host)


def known_keys(settings: Settings, *, openssh: bool | None = None) -> tuple[KnownKey, ...]:
    """All lines about the host, the user's files before the system's. `openssh` says who finds them."""
    if openssh is None:
        openssh = shutil.which("ssh-keygen") is not None
    find = _find_with_openssh if openssh else find_lines
    files = (*settings.paths("userknownhostsfile"), *settings.paths("globalknownhostsfile"))
    return tuple(key for name in known_names(settings) for file in files if file.is_file() for key in find(name, file))


def judge(known: Iterable[KnownKey], names: Sequence[str], shown: HostKey) -> Verdict:
    """OpenSSH's verdict. A plain name counts for another port only where it says yes."""
    known = tuple(known)
    if any(line.marker == "@revoked" and line.key == shown for line in known):
        return "revoked"
    plain = [line for line in known if line.marker == "" and line.key.type == shown.type]
    if any(line.key == shown for line in plain):
        return "known" if not _contradicted(plain, names, shown) else "changed"
    return "changed" if any(line.name == names[0] for line in plain) else "unknown"


def _contradicted(plain: Sequence[KnownKey], names: Sequence[str], shown: HostKey) -> bool:
    """Whether the exact name is known with other keys of this type only: then the plain name does not help."""
    exact = [line.key for line in plain if line.name == names[0]]
    return bool(exact) and shown not in exact


def signature_algorithms(settings: Settings, known: Iterable[KnownKey], possible: Sequence[str]) -> tuple[str, ...]:
    """The order in which to ask for host keys: types that are known first, so that a changed key is shown as such."""
    wanted = [name for name in settings.names("hostkeyalgorithms") or possible if name in possible]
    types = {line.key.type for line in known if line.marker == ""}
    first = [name for name in wanted if any(name in _SIGNATURES.get(type, (type,)) for type in types)]
    return (*first, *(name for name in wanted if name not in first))


def check(settings: Settings, known: Sequence[KnownKey], shown: HostKey, where: str) -> None:
    """Return only if the key is the host's. `where` begins each sentence: `train`, or `train: jump host gate`.

    Raises HostKeyError with fingerprints and what to type.
    """
    names = known_names(settings)
    verdict = judge(known, names, shown)
    named = f"{_kind(shown.type)} {shown.fingerprint}"
    if verdict == "known":
        return
    if verdict == "revoked":
        line = next(line for line in known if line.marker == "@revoked" and line.key == shown)
        raise HostKeyError(
            f"{where}: the host key {named} is marked @revoked in {line.file}:{line.line}",
            hint="do not log in; ask the owner of the host",
        )
    if verdict == "changed":
        line = next(
            line for line in known if line.marker == "" and line.name == names[0] and line.key.type == shown.type
        )
        forget = shlex.join(["ssh-keygen", "-R", names[0], "-f", str(line.file)])
        raise HostKeyError(
            f"{where}: the host key has CHANGED: {line.file}:{line.line} has {_kind(line.key.type)}"
            f" {line.key.fingerprint}, but the host shows {named}. Either the host was set up anew, or someone"
            " is in between",
            hint=f"if the owner confirms the new key: {forget}, then {settings.command}",
        )
    raise HostKeyError(
        _unknown(where, named, known), hint=f"{_asking(settings)}  (compare the fingerprint, then say yes)"
    )


def _asking(settings: Settings) -> str:
    """The command with which ssh shows the key and asks, though it may be configured to refuse."""
    strict = settings.one("stricthostkeychecking") in ("yes", "true")
    return settings.command.replace("ssh ", "ssh -o StrictHostKeyChecking=ask ", 1) if strict else settings.command


def _unknown(where: str, named: str, known: Sequence[KnownKey]) -> str:
    text = f"{where}: the host key is unknown: {named}"
    if any(line.marker == "@cert-authority" for line in known):
        return text + "; a @cert-authority line speaks of this host, which needs `transport: openssh`"
    others = [f"{line.file}:{line.line}" for line in known if line.marker == ""]
    return text + (f"; other keys of this host are known ({', '.join(others[:3])})" if others else "")


def _kind(key_type: str) -> str:
    """`ED25519`, `RSA`, `ECDSA`: as OpenSSH calls the types when it asks."""
    return next((kind for kind in ("ED25519", "ECDSA", "RSA") if kind in key_type.upper()), key_type)


def _find_with_openssh(name: str, file: Path) -> list[KnownKey]:
    argv = ["ssh-keygen", "-F", name, "-f", str(file)]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LOOKUP_LIMIT)
    except subprocess.TimeoutExpired:
        raise HostKeyError(
            f"{name}: reading {file} took more than {_LOOKUP_LIMIT:.0f} s", hint=shlex.join(argv)
        ) from None
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    found = []
    for head, text in pairwise(lines):
        number = re.match(r"# Host .* found: line (\d+)", head)
        if number:
            found.append(_known_key(name, file, int(number[1]), text))
    return [key for key in found if key is not None]


def find_lines(name: str, file: Path) -> list[KnownKey]:
    """The lines of a known_hosts file that speak of `name`, by own reading: patterns, negation, hashes, markers."""
    found = []
    for number, text in enumerate(file.read_text(errors="replace").splitlines(), 1):
        words = text.split()
        if words and words[0] in ("@revoked", "@cert-authority"):
            words = words[1:]
        if len(words) >= 3 and not words[0].startswith(("#", "@")) and _matches(words[0], name):
            found.append(_known_key(name, file, number, text))
    return [key for key in found if key is not None]


def _matches(patterns: str, name: str) -> bool:
    """Whether a host field speaks of a name. One negated match refuses the whole field."""
    if patterns.startswith("|1|"):
        return _hash_matches(patterns, name)
    agreed = False
    for pattern in patterns.lower().split(","):
        negated = pattern.startswith("!")
        # in ssh only * and ? are special, in fnmatch [ is too
        if fnmatchcase(name, pattern.removeprefix("!").replace("[", "[[]")):
            if negated:
                return False
            agreed = True
    return agreed


def _hash_matches(field: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in field[3:].split("|"))
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(digest, hmac.new(salt, name.encode(), hashlib.sha1).digest())


def _known_key(name: str, file: Path, number: int, text: str) -> KnownKey | None:
    """A line as a KnownKey; None for one with a broken key, which OpenSSH passes over too."""
    words = text.split()
    marker: Marker = ""
    if words[0] == "@revoked":
        marker, words = "@revoked", words[1:]
    elif words[0] == "@cert-authority":
        marker, words = "@cert-authority", words[1:]
    if len(words) < 3:
        return None
    try:
        blob = base64.b64decode(words[2], validate=True)
    except (ValueError, binascii.Error):
        return None
    size = int.from_bytes(blob[:4], "big")
    if blob[4 : 4 + size] != words[1].encode() or len(blob) <= 4 + size:
        return None
    return KnownKey(file=file, line=number, name=name, marker=marker, key=HostKey(type=words[1], blob=blob))
