"""Log in with the keys that OpenSSH would offer, in its order, and say in one sentence why nobody was let in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.pkey import PublicBlob, UnknownKeyType

from orchestrator.errors import AuthenticationFailed, HostUnreachable
from orchestrator.ssh import keyagent, keyfiles
from orchestrator.ssh.keyagent import Identity, KeyAgentError
from orchestrator.ssh.resolve import Settings


class UnusableKey(Exception):
    """A key that can't be offered; the text is a phrase for the user."""


class AgentKey(paramiko.PKey):
    """A key in the agent. paramiko's own knows only the agent of SSH_AUTH_SOCK, and waits for it without a limit."""

    def __init__(self, path: str, identity: Identity, certificate: bytes | None = None) -> None:
        super().__init__()
        self._path = path
        self._identity = identity
        self.public_blob = PublicBlob(keyfiles.key_type(certificate), certificate) if certificate else None
        self.problem = ""

    def get_name(self) -> str:
        return self._identity.type

    def asbytes(self) -> bytes:
        return self._identity.blob

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> bytes:  # type: ignore[override]
        """An empty signature when the agent refuses: the server then turns down this key, and the next can be tried."""
        try:
            return keyagent.sign(self._path, self._identity.blob, data, algorithm or "")
        except KeyAgentError as error:
            self.problem = f"the agent did not sign: {error}"
            return b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A key to offer: from the agent or from a file, perhaps with a certificate (its public blob)."""

    label: str
    file: Path | None = None
    identity: Identity | None = None
    certificate: bytes | None = None

    def load(self, agent: str) -> paramiko.PKey:
        """The key itself. Raises UnusableKey."""
        if self.identity is not None:
            return AgentKey(agent, self.identity, self.certificate)
        assert self.file is not None
        defect = keyfiles.defect(self.file)
        if defect:
            raise UnusableKey(f"{self.file} {defect}")
        try:
            key = paramiko.PKey.from_path(self.file)
        except (paramiko.SSHException, UnknownKeyType, OSError, ValueError, TypeError) as error:
            raise UnusableKey(f"{self.file} can't be used ({error})") from None
        blob = PublicBlob(keyfiles.key_type(self.certificate), self.certificate) if self.certificate else None
        key.public_blob = blob
        return key


def offers(settings: Settings, held: list[Identity]) -> Iterator[Offer]:
    """OpenSSH's order: certificates, agent keys that an IdentityFile names, other agent keys, keys in files only."""
    files = {path: keyfiles.public_blob(path) for path in settings.paths("identityfile")}
    files = {path: blob for path, blob in files.items() if blob is not None or path.is_file()}
    plain = {identity.blob: identity for identity in held}
    certificates = [Path(f"{path}-cert.pub") for path in files] + list(settings.paths("certificatefile"))
    offered: set[bytes] = set()
    for path in dict.fromkeys(certificates):
        certificate = keyfiles.public_blob(path) if path.is_file() else None
        if certificate is None or certificate in offered:
            continue
        try:
            blob = keyfiles.certified_blob(certificate)
        except ValueError:
            continue
        file = next((file for file, public in files.items() if public == blob), None)
        if blob in plain or file is not None:
            offered.add(certificate)
            yield Offer(label=str(path), file=file, identity=plain.get(blob), certificate=certificate)
    only = settings.on("identitiesonly")
    rest = [identity for identity in held if identity.blob not in offered]
    if not only:
        yield from (_from_agent(identity) for identity in rest if identity.type.endswith(keyfiles.CERTIFICATE))
    rest = [identity for identity in rest if not identity.type.endswith(keyfiles.CERTIFICATE)]
    named = [identity for identity in rest if identity.blob in files.values()]
    yield from map(_from_agent, named)
    if not only:
        yield from (_from_agent(identity) for identity in rest if identity not in named)
    yield from (Offer(label=str(path), file=path) for path, blob in files.items() if blob not in plain)


def _from_agent(identity: Identity) -> Offer:
    return Offer(label=identity.comment or identity.type, identity=identity)


def log_in(transport: paramiko.Transport, settings: Settings, where: str) -> None:
    """Return once the server lets us in. Raises AuthenticationFailed, or HostUnreachable for one that fell silent."""
    agent = keyagent.agent_path(settings)
    notes: list[str] = []
    held: list[Identity] = []
    if agent:
        try:
            held = keyagent.identities(agent)
        except KeyAgentError as error:
            notes.append(f"the key agent at {agent} can't be asked: {error}")
    refused: list[str] = []
    for offer in offers(settings, held):
        try:
            key = offer.load(agent)
        except UnusableKey as unusable:
            notes.append(str(unusable))
            continue
        if _accepted(transport, settings, where, key, refused, offer.label, notes):
            return
    _nobody_let_in(transport, settings, where, refused, notes)


def _accepted(
    transport: paramiko.Transport,
    settings: Settings,
    where: str,
    key: paramiko.PKey,
    refused: list[str],
    label: str,
    notes: list[str],
) -> bool:
    """Offer one key. True: in; False: try the next."""
    started = time.monotonic()
    try:
        further = transport.auth_publickey(settings.user, key)
    except paramiko.BadAuthenticationType as other:
        raise _wants_more(settings, where, refused, other.allowed_types) from None
    except (paramiko.SSHException, EOFError, OSError):
        limit = transport.auth_timeout
        if transport.is_active() and time.monotonic() - started >= limit - 0.5:
            raise HostUnreachable(
                f"{where}: fell silent during the log-in ({limit:.0f} s)", hint=settings.command
            ) from None
        refused.append(label)
        if isinstance(key, AgentKey) and key.problem:
            notes.append(f"{label}: {key.problem}")
        if not transport.is_active():
            raise _closed(settings, where, refused) from None
        return False
    if further:
        raise AuthenticationFailed(
            f"{where}: accepted {label}, but wants a further step ({', '.join(further)}), which only a person can take",
            hint=settings.command,
        )
    return True


def _closed(settings: Settings, where: str, refused: list[str]) -> AuthenticationFailed:
    return AuthenticationFailed(
        f"{where}: the server closed the connection after it refused {', '.join(refused)}: too many keys were offered"
        " (MaxAuthTries)",
        hint=f"name the right key for {settings.target.host} in the ssh configuration: IdentityFile PATH and"
        " IdentitiesOnly yes",
    )


def _wants_more(settings: Settings, where: str, refused: list[str], methods: list[str]) -> AuthenticationFailed:
    before = f"refused {', '.join(refused)}; " if refused else ""
    return AuthenticationFailed(
        f"{where}: {before}the server takes only {', '.join(methods) or 'nothing'} for user {settings.user}",
        hint=f"{settings.command}  (or set `transport: openssh`, which asks once)",
    )


def _nobody_let_in(
    transport: paramiko.Transport, settings: Settings, where: str, refused: list[str], notes: list[str]
) -> None:
    """Ask what the server takes, and raise. Returns only if it takes anybody (method `none`)."""
    methods: list[str] = []
    if refused and not transport.is_active():
        raise _closed(settings, where, refused)
    try:
        transport.auth_none(settings.user)
        return
    except paramiko.BadAuthenticationType as error:
        methods = list(error.allowed_types)
    except (paramiko.SSHException, EOFError, OSError):
        pass
    if methods and "publickey" not in methods:
        raise _wants_more(settings, where, refused, methods)
    if refused:
        what = f"no key was accepted for user {settings.user} (refused: {', '.join(refused)})"
    else:
        what = f"no key is at hand for user {settings.user}"
    takes = f"; the server takes {', '.join(methods)}" if methods else ""
    raise AuthenticationFailed(
        f"{where}: {what}{takes}{''.join(f'; {note}' for note in notes)}", hint=_hint(settings, notes)
    )


def _hint(settings: Settings, notes: list[str]) -> str:
    locked = next((note.split(" has a passphrase")[0] for note in notes if "has a passphrase" in note), None)
    return f"ssh-add {locked}" if locked else settings.command
