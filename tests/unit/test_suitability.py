"""Which settings paramiko can't serve. A stock configuration is none of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from types import MappingProxyType

import pytest

from orchestrator.ssh.resolve import Settings, Target, parse_options, resolve
from orchestrator.ssh.suitability import cannot

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="no OpenSSH here")
DEBIAN = (Path(__file__).parent / "data" / "ssh_g_debian_12.txt").read_text()
"""recorded from `ssh -G -F /etc/ssh/ssh_config box` on Debian 12 (GSSAPIAuthentication is on there)"""
MACOS = "Host *\n    SendEnv LANG LC_*\n"
"""what macOS ships in /etc/ssh/ssh_config.d"""
MAC_USER = """Host *
    IgnoreUnknown UseKeychain
    UseKeychain yes
    AddKeysToAgent yes
    IdentityAgent "~/Library/Group Containers/agent.sock"
    IdentityFile ~/.ssh/id_ed25519
    ServerAliveInterval 60
    HashKnownHosts yes
"""


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def debian(**changes: str) -> Settings:
    options = {**parse_options(DEBIAN), **{name: (value,) for name, value in changes.items()}}
    target = Target(host="box")
    return Settings(target=target, hostname="box", port=22, user="me", options=MappingProxyType(options))


def test_a_stock_debian_configuration_gives_no_reason() -> None:
    assert debian().on("gssapiauthentication")
    assert cannot(debian()) == []


@needs_ssh
@pytest.mark.parametrize("text", [MACOS, MAC_USER], ids=["stock", "with what people add"])
def test_a_macos_configuration_gives_no_reason(tmp_path: Path, text: str) -> None:
    config = tmp_path / "config"
    config.write_text(text)
    settings = resolve("box", config)
    assert cannot(settings) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"knownhostscommand": "/bin/keys %H"}, "KnownHostsCommand is set"),
        ({"revokedhostkeys": "/etc/ssh/revoked"}, "RevokedHostKeys is set"),
        ({"hostbasedauthentication": "yes"}, "HostbasedAuthentication is on"),
        ({"verifyhostkeydns": "ask"}, "VerifyHostKeyDNS is on"),
        ({"proxyusefdpass": "yes"}, "ProxyUseFdpass is on"),
        ({"pubkeyauthentication": "false"}, "PubkeyAuthentication is off"),
        ({"preferredauthentications": "password"}, "PreferredAuthentications leaves out publickey"),
        ({"preferredauthentications": "gssapi-with-mic,publickey"}, "PreferredAuthentications puts GSSAPI first"),
        ({"pkcs11provider": "/none/opensc.so"}, "PKCS11Provider /none/opensc.so is set, and no agent holds its keys"),
        ({"ciphers": "chacha20-poly1305@openssh.com"}, "ciphers allows none that paramiko has"),
        ({"kexalgorithms": "sntrup761x25519-sha512"}, "kexalgorithms allows none that paramiko has"),
        ({"hostkeyalgorithms": "ssh-ed25519-cert-v01@openssh.com"}, "hostkeyalgorithms allows none that paramiko has"),
        ({"macs": "umac-64@openssh.com"}, "macs allows none that paramiko has"),
    ],
)
def test_what_paramiko_lacks_is_named(changes: dict[str, str], reason: str) -> None:
    assert cannot(debian(**changes)) == [reason]


def test_what_a_jump_host_needs_counts_too() -> None:
    from dataclasses import replace

    hop = debian(knownhostscommand="/bin/keys %H")
    assert cannot(replace(debian(), hops=(hop,))) == ["jump host box: KnownHostsCommand is set"]


def test_a_certificate_authority_that_speaks_of_the_host_is_a_reason(tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    blob = "AAAAC3NzaC1lZDI1NTE5AAAAIIK6ccuE/eo60IVJBKQTaaA4Ia8h03d1Ich35IQGcKLY"
    known.write_text(f"@cert-authority *.example.org ssh-ed25519 {blob}\n")
    assert cannot(debian(userknownhostsfile=str(known))) == []
    known.write_text(f"@cert-authority b* ssh-ed25519 {blob}\n")
    assert cannot(debian(userknownhostsfile=str(known))) == [f"{known}:1 names a @cert-authority for this host"]


SK_BLOB = "AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAIIK6ccuE/eo60IVJBKQTaaA4Ia8h03d1Ich35IQGcKLYAAAABHNzaDo="


def test_a_key_on_a_security_key_is_a_reason_only_where_it_exists(tmp_path: Path) -> None:
    key = tmp_path / "id_ed25519_sk"
    assert cannot(debian(identityfile=str(key))) == []
    key.write_text("")
    Path(f"{key}.pub").write_text(f"sk-ssh-ed25519@openssh.com {SK_BLOB} me\n")
    assert cannot(debian(identityfile=str(key))) == [f"{key} is a key on a security key, and no agent holds it"]


@pytest.mark.skipif(shutil.which("ssh-agent") is None, reason="no ssh-agent here")
def test_an_agent_that_does_not_answer_holds_no_key_and_costs_little_time(tmp_path: Path) -> None:
    import socket

    key, path = tmp_path / "id_sk", tmp_path / "agent"
    key.write_text("")
    Path(f"{key}.pub").write_text(f"sk-ssh-ed25519@openssh.com {SK_BLOB} me\n")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        started = time.monotonic()
        assert len(cannot(debian(identityfile=str(key), identityagent=str(path)))) == 1
        assert time.monotonic() - started < 6
    process = subprocess.Popen(["ssh-agent", "-D", "-a", f"{path}2"], stdout=subprocess.DEVNULL)
    try:
        while not Path(f"{path}2").exists():
            time.sleep(0.01)
        ordinary = tmp_path / "ordinary"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(ordinary)], check=True)
        environment = {**os.environ, "SSH_AUTH_SOCK": f"{path}2"}
        subprocess.run(["ssh-add", "-q", str(ordinary)], env=environment, check=True)
        assert len(cannot(debian(identityfile=str(key), identityagent=f"{path}2"))) == 1
    finally:
        process.terminate()
        process.wait()
