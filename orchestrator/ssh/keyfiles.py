"""What can be read from a user's key files without a passphrase: public parts, certificates, why a file is no use."""

from __future__ import annotations

import base64
import binascii
import os
import struct
from pathlib import Path

CERTIFICATE = "-cert-v01@openssh.com"
_MAGIC = b"openssh-key-v1\0"
_MAX_FILE = 1 << 20
_FIELDS = {"ssh-rsa": 2, "ssh-ed25519": 1, "sk-ssh-ed25519": 2, "sk-ecdsa-sha2-nistp256": 3}
"""public fields of a key type inside a certificate, after its nonce; the ecdsa types have two"""


def public_blob(path: Path) -> bytes | None:
    """The public key that belongs to an IdentityFile (which may itself be a .pub file), or None."""
    for candidate in (path, Path(f"{path}.pub")):
        text = _read(candidate)
        blob = _public_line(text) or _public_part(text)
        if blob:
            return blob
    return None


def key_type(blob: bytes) -> str:
    """The type name with which a public blob begins."""
    return _field(blob, 0)[0].decode("ascii", "replace")


def certified_blob(certificate: bytes) -> bytes:
    """The plain public key inside an OpenSSH user certificate. Raises ValueError for anything else."""
    try:
        name, at = _field(certificate, 0)
        certified = name.decode("ascii", "replace")
        if not certified.endswith(CERTIFICATE):
            raise ValueError("not a certificate")
        base = certified.removesuffix(CERTIFICATE)
        _, at = _field(certificate, at)  # nonce
        start = at
        for _ in range(_FIELDS.get(base, 2)):
            _, at = _field(certificate, at)
    except struct.error:
        raise ValueError("a certificate that is cut short") from None
    plain = f"{base}@openssh.com" if base.startswith("sk-") else base
    return struct.pack(">I", len(plain)) + plain.encode() + certificate[start:at]


def defect(path: Path) -> str:
    """Why a private key can't be used, as a phrase; empty if nothing is wrong with it."""
    try:
        status = path.stat()
        text = _read(path)
    except OSError as error:
        return f"can't be read ({error.strerror})"
    if b"PRIVATE KEY-----" not in text:
        return "is no private key"
    if status.st_uid == os.getuid() and status.st_mode & 0o077:
        return "may be read by others, so ssh refuses it (chmod 600)"
    if is_encrypted(text):
        return "has a passphrase (ssh-add it)"
    return ""


def is_encrypted(text: bytes) -> bool:
    """Whether a private key needs a passphrase."""
    packed = _unarmoured(text)
    if packed:
        return _field(packed, len(_MAGIC))[0] != b"none"
    return b"ENCRYPTED" in text


def _public_line(text: bytes) -> bytes | None:
    words = text.split(None, 2)
    if len(words) < 2 or not words[0].startswith((b"ssh-", b"ecdsa-", b"sk-")):
        return None
    try:
        blob = base64.b64decode(words[1], validate=True)
        return blob if _field(blob, 0)[0] == words[0] else None
    except (binascii.Error, ValueError, struct.error):
        return None


def _public_part(text: bytes) -> bytes | None:
    """OpenSSH's private format carries the public key in clear, before the part that may be encrypted."""
    packed = _unarmoured(text)
    if not packed:
        return None
    try:
        at = len(_MAGIC)
        for _ in range(3):  # cipher, kdf, kdf options
            _, at = _field(packed, at)
        return _field(packed, at + 4)[0]
    except struct.error:
        return None


def _unarmoured(text: bytes) -> bytes:
    begin, end = b"-----BEGIN OPENSSH PRIVATE KEY-----", b"-----END OPENSSH PRIVATE KEY-----"
    if begin not in text or end not in text:
        return b""
    try:
        packed = base64.b64decode(text.split(begin)[1].split(end)[0])
    except (binascii.Error, ValueError):
        return b""
    return packed if packed.startswith(_MAGIC) else b""


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE)
    except OSError:
        return b""


def _field(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = struct.unpack_from(">I", data, at)
    if at + 4 + size > len(data):
        raise struct.error("cut short")
    return data[at + 4 : at + 4 + size], at + 4 + size
