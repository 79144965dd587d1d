"""Can paramiko serve these settings, or must it be OpenSSH? A stock Debian or macOS configuration gives no reason."""

from __future__ import annotations

import base64
import binascii
import subprocess
from pathlib import Path

from orchestrator.ssh import keyagent, keyfiles
from orchestrator.ssh.hostkeys import KnownKey, known_keys
from orchestrator.ssh.resolve import Settings

_KEX = {
    *("curve25519-sha256", "curve25519-sha256@libssh.org", "ecdh-sha2-nistp256", "ecdh-sha2-nistp384"),
    *("ecdh-sha2-nistp521", "diffie-hellman-group16-sha512", "diffie-hellman-group-exchange-sha256"),
    "diffie-hellman-group14-sha256",
}
_CIPHERS = {f"aes{bits}-{mode}" for bits in (128, 192, 256) for mode in ("ctr", "cbc")}
_CIPHERS |= {"aes128-gcm@openssh.com", "aes256-gcm@openssh.com"}
_KEY_TYPES = {"ssh-ed25519", "rsa-sha2-512", "rsa-sha2-256"} | {f"ecdsa-sha2-nistp{bits}" for bits in (256, 384, 521)}
_MACS = {f"hmac-sha2-{bits}{etm}" for bits in (256, 512) for etm in ("", "-etm@openssh.com")} | {"hmac-sha1"}
_ALGORITHMS = {"kexalgorithms": _KEX, "ciphers": _CIPHERS, "macs": _MACS, "hostkeyalgorithms": _KEY_TYPES}
"""what every paramiko since 3.4 has; asking paramiko itself would cost its import. It wants a mac beside GCM too"""
_SET = {
    "knownhostscommand": "KnownHostsCommand",
    "revokedhostkeys": "RevokedHostKeys",
    "bindinterface": "BindInterface",
}
"""options that mean something paramiko doesn't do as soon as they have a value"""
_SWITCHED_ON = {
    "proxyusefdpass": "ProxyUseFdpass",
    "hostbasedauthentication": "HostbasedAuthentication",
    "verifyhostkeydns": "VerifyHostKeyDNS",
}
_ASK_LIMIT = 10.0


def cannot(settings: Settings) -> list[str]:
    """Why paramiko can't serve this host, hops included; empty where it can."""
    reasons = [reason for hop in settings.hops for reason in _prefixed(hop)]
    return [*reasons, *_reasons(settings)]


def _prefixed(hop: Settings) -> list[str]:
    return [f"jump host {hop.target}: {reason}" for reason in _reasons(hop)]


def _reasons(settings: Settings) -> list[str]:
    reasons = [f"{name} is set" for option, name in _SET.items() if settings.one(option)]
    reasons += [f"{name} is on" for option, name in _SWITCHED_ON.items() if _is_on(settings, option)]
    reasons += _key_reasons(settings)
    reasons += _authority_reasons(known_keys(settings, openssh=False))  # own reading: no process for a rare case
    return [*reasons, *_algorithm_reasons(settings)]


def _is_on(settings: Settings, option: str) -> bool:
    return settings.one(option, "no").lower() not in ("no", "false")


def _key_reasons(settings: Settings) -> list[str]:
    """Hardware keys are fine as long as an agent signs for them."""
    preferred = settings.names("preferredauthentications")
    reasons = []
    if settings.one("pubkeyauthentication", "yes").lower() in ("no", "false"):
        reasons.append("PubkeyAuthentication is off")
    elif preferred and "publickey" not in preferred:
        reasons.append("PreferredAuthentications leaves out publickey")
    elif preferred and preferred[0].startswith("gssapi"):
        reasons.append("PreferredAuthentications puts GSSAPI first")
    hardware = [(path, keyfiles.public_blob(path)) for path in settings.paths("identityfile") if path.is_file()]
    on_tokens = [(path, blob) for path, blob in hardware if blob and keyfiles.key_type(blob).startswith("sk-")]
    provider = settings.one("pkcs11provider")
    if not on_tokens and not provider:
        return reasons
    held = _held_by_the_agent(settings)
    reasons += [
        f"{path} is a key on a security key, and no agent holds it" for path, blob in on_tokens if blob not in held
    ]
    if provider and not _provider_blobs(settings.expand(provider)) & held:
        reasons.append(f"PKCS11Provider {provider} is set, and no agent holds its keys")
    return reasons


def _held_by_the_agent(settings: Settings) -> set[bytes | None]:
    path = keyagent.agent_path(settings)
    try:
        return {identity.blob for identity in keyagent.identities(path)} if path else set()
    except keyagent.KeyAgentError:
        return set()


def _provider_blobs(provider: str) -> set[bytes | None]:
    """Public keys of a PKCS#11 token. Listing them asks for no PIN."""
    try:
        argv = ["ssh-keygen", "-D", str(Path(provider))]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_LIMIT)
    except (OSError, subprocess.TimeoutExpired):
        return set()
    blobs: set[bytes | None] = set()
    for line in done.stdout.splitlines():
        words = line.split()
        try:
            blobs |= {base64.b64decode(words[1], validate=True)} if len(words) > 1 else set()
        except (binascii.Error, ValueError):
            continue
    return blobs


def _authority_reasons(known: tuple[KnownKey, ...]) -> list[str]:
    lines = [line for line in known if line.marker == "@cert-authority"]
    return [f"{lines[0].file}:{lines[0].line} names a @cert-authority for this host"] if lines else []


def _algorithm_reasons(settings: Settings) -> list[str]:
    return [
        f"{option} allows none that paramiko has"
        for option, known in _ALGORITHMS.items()
        if settings.names(option) and not known & set(settings.names(option))
    ]
