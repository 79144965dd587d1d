"""Targets and settings: what an inventory may name, and what ssh's own configuration makes of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.ssh.resolve import Target, config_file, parse_options, parse_target, resolve, target_argv

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="no OpenSSH here")
BOTH_READINGS = [pytest.param(True, marks=needs_ssh, id="openssh"), pytest.param(False, id="paramiko")]


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("ct200", Target(host="ct200")),
        ("root@10.1.230.172", Target(host="10.1.230.172", user="root")),
        ("box:2200", Target(host="box", port=2200)),
        ("me@[fe80::1%eth0]:2200", Target(host="fe80::1%eth0", user="me", port=2200)),
        ("::1", Target(host="::1")),
        ("ssh://me@box:2200/", Target(host="box", user="me", port=2200)),
        ("me@corp@box", Target(host="box", user="me@corp")),
        ("CORP\\me@box", Target(host="box", user="CORP\\me")),
    ],
)
def test_a_target_is_an_alias_or_user_host_and_port(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text",
    [
        *("", "-oProxyCommand=id", "root@-oProxyCommand=id", "-l@box", "ssh://", "ssh://-x"),
        *("a b", "box\n", "box\x1b[31m", "\x00", "box\u202e"),
        *("$(id)", "`id`", "a;id", "a|id", "a&id", "box>f", "'box'", '"', "me\\@box"),
        *("@box", "box:", "box:0", "box:65536", "box:x", "[::1", "a:b:c"),
    ],
)
def test_what_a_program_or_a_shell_could_misread_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no ssh target"):
        parse_target(text)


@given(st.text(max_size=30))
def test_any_accepted_target_is_safe_as_an_argument_and_in_a_shell(text: str) -> None:
    try:
        target = parse_target(text)
    except ConfigError:
        return
    *options, dashes, host = target_argv(target)
    assert dashes == "--" and host == target.host
    for word in (target.host, target.user or "x"):
        assert not word.startswith("-") and word.isprintable() and not set(word) & set(" '\"`$;&<>|(){}*?!")
    assert options in ([], ["-l", target.user], ["-p", str(target.port)], ["-l", target.user, "-p", str(target.port)])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config"
    path.write_text(
        f"""
Host train
  HostName 10.1.2.6
  User root
  Port 2200
  IdentityFile "{tmp_path}/keys of/%r at %h"
  UserKnownHostsFile "{tmp_path}/known hosts" {tmp_path}/second
  IdentitiesOnly yes
Host behind
  HostName 10.1.2.7
  ProxyJump gate,me@train:2201
Host gate
  ProxyJump outer
Host loop
  ProxyJump loop2
Host loop2
  ProxyJump loop
"""
    )
    (tmp_path / "known hosts").write_text("")
    return path


@pytest.mark.parametrize("openssh", BOTH_READINGS)
def test_an_alias_gives_host_user_port_keys_and_files(config: Path, tmp_path: Path, openssh: bool) -> None:
    settings = resolve("train", config, openssh=openssh)
    assert (settings.hostname, settings.port, settings.user) == ("10.1.2.6", 2200, "root")
    assert settings.paths("identityfile")[0] == tmp_path / "keys of" / "root at 10.1.2.6"
    assert settings.paths("userknownhostsfile") == (tmp_path / "known hosts", tmp_path / "second")
    assert settings.on("identitiesonly")
    assert settings.command == f"ssh -F {config} train"


@pytest.mark.parametrize("openssh", BOTH_READINGS)
def test_user_and_port_of_the_target_win_over_the_configuration(config: Path, openssh: bool) -> None:
    settings = resolve("dev@train:22", config, openssh=openssh)
    assert (settings.hostname, settings.port, settings.user) == ("10.1.2.6", 22, "dev")
    assert settings.command == f"ssh -F {config} -p 22 dev@train"


@pytest.mark.parametrize("openssh", BOTH_READINGS)
def test_jump_hosts_come_in_order_each_with_settings_of_its_own(config: Path, openssh: bool) -> None:
    """`-J gate` stands for the way to the second hop; the first hop's own ProxyJump leads to it."""
    hops = resolve("behind", config, openssh=openssh).hops
    assert [(hop.hostname, hop.port, hop.user) for hop in hops][-1] == ("10.1.2.6", 2201, "me")
    assert [hop.hostname for hop in hops] == ["outer", "gate", "10.1.2.6"]
    assert hops[-1].jump == "gate"


@pytest.mark.parametrize("openssh", BOTH_READINGS)
def test_jump_hosts_in_a_circle_are_an_error(config: Path, openssh: bool) -> None:
    with pytest.raises(ConfigError, match="go in a circle"):
        resolve("loop", config, openssh=openssh)


@needs_ssh
def test_a_broken_configuration_is_named_by_ssh_itself(tmp_path: Path) -> None:
    broken = tmp_path / "config"
    broken.write_text("Host *\n  NoSuchOption yes\n")
    with pytest.raises(ConfigError, match=rf"{broken}: line 2: Bad configuration option: nosuchoption"):
        resolve("box", broken)


def test_without_openssh_an_include_is_refused_rather_than_passed_over(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n  Include other\n")
    with pytest.raises(ConfigError, match=rf"{config}:2: `Include` can't be read without OpenSSH"):
        resolve("box", config, openssh=False)


def test_the_parameter_wins_over_the_variable_and_a_missing_file_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("")
    two.write_text("")
    monkeypatch.delenv("ORCH_SSH_CONFIG", raising=False)
    assert config_file() is None
    monkeypatch.setenv("ORCH_SSH_CONFIG", str(one))
    assert config_file() == one
    assert config_file(two) == two
    with pytest.raises(ConfigError, match="no such ssh configuration file"):
        config_file(tmp_path / "three")


def test_an_option_may_come_several_times_and_none_counts_as_not_set() -> None:
    options = parse_options("identityfile ~/a b\nidentityfile ~/c\nProxyJump none\n")
    assert options == {"identityfile": ("~/a b", "~/c"), "proxyjump": ("none",)}
