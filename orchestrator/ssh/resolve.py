"""An ssh target -> Settings, by OpenSSH's own reading (`ssh -G`), or by paramiko's where there is no OpenSSH.

Targets come from inventories, so they are checked before any program or shell sees them, and `--` precedes each.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from orchestrator.errors import ConfigError

CONFIG_VARIABLE = "ORCH_SSH_CONFIG"
MAX_HOPS = 16
_RESOLVE_LIMIT = 20.0
"""seconds for `ssh -G`, which may run the user's own `Match exec` or ask a name server"""
_SHELL_CHARACTERS = set("'\"`$;&<>|(){}*?!")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What was asked for: an alias or `[user@]host[:port]`."""

    host: str
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host and self.port else self.host
        return (f"{self.user}@" if self.user else "") + host + (f":{self.port}" if self.port else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to reach one host, all aliases resolved. `options` is what `ssh -G` prints, keys in lower case."""

    target: Target
    hostname: str
    port: int
    user: str
    options: Mapping[str, tuple[str, ...]]
    hops: tuple[Settings, ...] = ()
    """the jump hosts on the way, nearest to the laptop first; each has its own settings and host key"""
    jump: str | None = None
    """`-J` that was given for this host itself, when it is a hop behind others"""
    config: Path | None = None
    source: Literal["openssh", "paramiko"] = "openssh"

    def one(self, option: str, default: str = "") -> str:
        """The last value of an option; `none` counts as not set."""
        values = self.options.get(option, ())
        return values[-1] if values and values[-1].lower() != "none" else default

    def on(self, option: str) -> bool:
        """Whether a yes/no option is set. Programs print `yes` or `true`."""
        return self.one(option).lower() in ("yes", "true")

    def names(self, option: str) -> tuple[str, ...]:
        """A comma-separated list, such as ciphers."""
        return tuple(name for name in self.one(option).split(",") if name)

    def paths(self, option: str) -> tuple[Path, ...]:
        """File names of an option, with ~ and %-tokens expanded. `ssh -G` prints several on a line, unquoted."""
        found: list[Path] = []
        for value in self.options.get(option, ()):
            words = [value] if option in ("identityfile", "certificatefile") else _split_paths(self.expand(value))
            found += [Path(self.expand(word)) for word in words if word.lower() != "none"]
        return tuple(found)

    def expand(self, text: str) -> str:
        """~, ${VARIABLE} and the %-tokens of ssh_config(5), save %C and those that stand for a host key."""
        local = socket.gethostname()
        me = pwd.getpwuid(os.getuid())
        tokens = {
            "%": "%",
            "d": me.pw_dir,
            "h": self.hostname,
            "i": str(os.getuid()),
            "k": self.one("hostkeyalias", self.target.host),
            "L": local.split(".")[0],
            "l": local,
            "n": self.target.host,
            "p": str(self.port),
            "r": self.user,
            "u": me.pw_name,
        }
        if text == "~" or text.startswith("~/"):
            text = me.pw_dir + text[1:]
        text = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], match[0]), text)
        return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)

    @property
    def command(self) -> str:
        """What a person types to get there: `ssh -p 2200 root@eval`."""
        return shlex.join(["ssh", *option_argv(self.config, self.jump), *typed_argv(self.target)])


def parse_target(text: str) -> Target:
    """An alias, `user@host`, `host:port`, `[::1]:22` or `ssh://user@host:port`.

    Raises ConfigError for what a program or a shell could take for something else.
    """
    rest = text[len("ssh://") :].rstrip("/") if text.startswith("ssh://") else text
    user, at, place = rest.rpartition("@")
    bracketed = re.fullmatch(r"\[([^\[\]]+)\](?::(\d+))?", place)
    plain = re.fullmatch(r"([^:\[\]]+)(?::(\d+))?", place)
    if bracketed or plain:
        host, digits = (bracketed or plain).groups()  # type: ignore[union-attr]
    elif _is_ipv6(place):
        host, digits = place, None
    else:
        raise _bad_target(text, "expected an alias or [user@]host[:port]")
    for part in (host, user):
        if part.startswith("-"):
            raise _bad_target(text, "a target may not begin with -")
        if any(not character.isprintable() or character.isspace() for character in part):
            raise _bad_target(text, "blanks and control characters are not allowed")
        if _SHELL_CHARACTERS & set(part) or part.endswith("\\"):
            raise _bad_target(text, "characters that a shell reads are not allowed")
    if (at and not user) or "\\" in host:
        raise _bad_target(text, "expected an alias or [user@]host[:port]")
    if digits is not None and not 0 < int(digits) < 65536:
        raise _bad_target(text, "a port lies between 1 and 65535")
    return Target(host=host, user=user or None, port=int(digits) if digits else None)


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def option_argv(config: Path | None, jump: str | None = None) -> list[str]:
    """The options that every call of OpenSSH for a target needs: its configuration file and the hops before it."""
    return [*(["-F", str(config)] if config else []), *(["-J", jump] if jump else [])]


def target_argv(target: Target) -> list[str]:
    """A target as arguments of `ssh`, ending in `--` and the host."""
    argv = [*(["-l", target.user] if target.user else []), *(["-p", str(target.port)] if target.port else [])]
    return [*argv, "--", target.host]


def typed_argv(target: Target) -> list[str]:
    """A target as a person would type it."""
    name = f"{target.user}@{target.host}" if target.user else target.host
    return [*(["-p", str(target.port)] if target.port else []), name]


def config_file(config: Path | None = None) -> Path | None:
    """The ssh configuration to use instead of ~/.ssh/config: the parameter, else ORCH_SSH_CONFIG, else none."""
    named = config or (Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None)
    if named is None:
        return None
    path = named.expanduser().absolute()
    if not path.is_file():
        raise ConfigError(f"{path}: no such ssh configuration file")
    return path


def resolve(text: str, config: Path | None = None, *, openssh: bool | None = None) -> Settings:
    """Settings of a target and of every hop on the way. `openssh` says whose reading; by default OpenSSH's if there.

    Raises ConfigError for a bad target, a configuration file that can't be read, or jump hosts that go in a circle.
    """
    if openssh is None:
        openssh = shutil.which("ssh") is not None
    return _resolve(parse_target(text), config_file(config), None, openssh, MAX_HOPS)


def _resolve(target: Target, config: Path | None, jump: str | None, openssh: bool, depth: int) -> Settings:
    if depth == 0:
        raise ConfigError(
            f"{target}: the jump hosts go in a circle", hint=f"ssh -G {shlex.quote(target.host)} | grep -i proxyjump"
        )
    options = _ask_openssh(target, config, jump) if openssh else _ask_paramiko(target, config, jump)
    settings = Settings(
        target=target,
        hostname=options["hostname"][-1],
        port=int(options["port"][-1]),
        user=options["user"][-1],
        options=MappingProxyType(options),
        jump=jump,
        config=config,
        source="openssh" if openssh else "paramiko",
    )
    hops = _hops(settings, openssh, depth)
    return replace(settings, hops=hops) if hops else settings


def _hops(settings: Settings, openssh: bool, depth: int) -> tuple[Settings, ...]:
    """As OpenSSH reads `ProxyJump a,b`: b is reached by `-J a`; a alone, by what the configuration says of it."""
    jump = settings.one("proxyjump")
    if not jump:
        return ()
    *before, last = [part for part in settings.expand(jump).split(",") if part]
    hop = _resolve(parse_target(last), settings.config, ",".join(before) or None, openssh, depth - 1)
    return (*hop.hops, hop)


def _ask_openssh(target: Target, config: Path | None, jump: str | None) -> dict[str, tuple[str, ...]]:
    argv = ["ssh", "-G", *option_argv(config, jump), *target_argv(target)]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_RESOLVE_LIMIT)
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{target}: `ssh -G` did not end within {_RESOLVE_LIMIT:.0f} s", hint=shlex.join(argv)
        ) from None
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit {done.returncode}"]
        raise ConfigError(f"{target}: ssh can't read its configuration: {lines[0]}", hint=shlex.join(argv))
    return parse_options(done.stdout.decode("utf-8", "surrogateescape"))


def parse_options(printed: str) -> dict[str, tuple[str, ...]]:
    """What `ssh -G` prints: one option a line; an option may come several times."""
    options: dict[str, tuple[str, ...]] = {}
    for line in printed.splitlines():
        key, _, value = line.partition(" ")
        options[key.lower()] = (*options.get(key.lower(), ()), value)
    return options


def _ask_paramiko(target: Target, config: Path | None, jump: str | None) -> dict[str, tuple[str, ...]]:
    """The same options by paramiko's reading, completed with OpenSSH's defaults. Refuses what it would misread."""
    from paramiko import SSHConfig
    from paramiko.ssh_exception import ConfigParseError, CouldNotCanonicalize

    reading = SSHConfig()
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    files = [config] if config else [home / ".ssh/config", Path("/etc/ssh/ssh_config")]
    for file in files:
        if file.is_file():
            text = file.read_text(errors="surrogateescape")
            _refuse_what_paramiko_misreads(file, text, user_file=file == files[0])
            reading.parse(_without_includes(text).splitlines())
    try:
        found = reading.lookup(target.host)
    except (ConfigParseError, CouldNotCanonicalize, KeyError, ValueError) as error:
        raise ConfigError(f"{target}: {files[0]} can't be read without OpenSSH: {error}") from None
    options = {"user": pwd.getpwuid(os.getuid()).pw_name, "port": "22", **_text_values(found)}
    options.update({"user": target.user} if target.user else {})
    options.update({"port": str(target.port)} if target.port else {})
    options.update({"proxyjump": jump} if jump else {})
    many = {key: tuple(value) for key, value in found.items() if isinstance(value, list)}
    known = {key: tuple(shlex.split(options.pop(key, default))) for key, default in _KNOWN_HOSTS_FILES.items()}
    identities = {"identityfile": tuple(f"~/.ssh/{name}" for name in ("id_rsa", "id_ecdsa", "id_ed25519"))}
    return {**{key: (value,) for key, value in options.items()}, **known, **identities, **many}


_KNOWN_HOSTS_FILES = {
    "userknownhostsfile": "~/.ssh/known_hosts ~/.ssh/known_hosts2",
    "globalknownhostsfile": "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2",
}
_INCLUDE = re.compile(r"^\s*include[\s=]", re.IGNORECASE)


def _refuse_what_paramiko_misreads(file: Path, text: str, *, user_file: bool) -> None:
    """paramiko ignores Include. In the system's file it is there by default, and usually empty; a user means it."""
    for number, line in enumerate(text.splitlines(), 1):
        if user_file and _INCLUDE.match(line):
            raise ConfigError(
                f"{file}:{number}: `Include` can't be read without OpenSSH", hint="install the OpenSSH client"
            )


def _without_includes(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not _INCLUDE.match(line))


def _text_values(found: Mapping[str, object]) -> dict[str, str]:
    return {key: value for key, value in found.items() if isinstance(value, str)}


def _split_paths(value: str) -> list[str]:
    """Words of a line that may hold file names with blanks: the longest run of words that is a file counts as one."""
    words, paths = value.split(" "), []
    while words:
        sizes = range(len(words), 1, -1)
        size = next((size for size in sizes if Path(" ".join(words[:size])).is_file()), 1)
        paths.append(" ".join(words[:size]))
        words = words[size:]
    return [path for path in paths if path]


def _bad_target(text: str, why: str) -> ConfigError:
    return ConfigError(f"{text[:200]!r} is no ssh target: {why}")
