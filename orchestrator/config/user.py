"""The user's own configuration, and the values that jobs name instead of holding.

Commands of this computer are read from the user's own config.yaml alone: a hosts.yaml or job found in some folder can
name one of them, never bring one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.config.messages import did_you_mean, displayed, quoted
from orchestrator.errors import ConfigError
from orchestrator.model import Job, ValueSource

COMMAND_SECONDS = 60
HOOK_SECONDS = 30.0
LARGEST_VALUE = 64 * 1024
"""bytes"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserConfig:
    """$XDG_CONFIG_HOME/orch/config.yaml. Empty where there is none."""

    path: Path
    commands: Mapping[str, tuple[str, ...]]
    result_hook: tuple[str, ...] = ()
    """run after each result, with its document on stdin; empty for none"""
    hook_timeout: float = HOOK_SECONDS
    """seconds"""
    tensorboard: Path | None = None
    """the folder that receives event files"""


def user_config_path(environ: Mapping[str, str]) -> Path:
    """Where the user's own configuration belongs. A relative XDG_CONFIG_HOME is ignored, as its standard says."""
    home = Path(environ.get("XDG_CONFIG_HOME") or "")
    if not home.is_absolute():
        home = Path(environ.get("HOME") or Path.home()) / ".config"
    return home / "orch" / "config.yaml"


def load_user_config(environ: Mapping[str, str] | None = None) -> UserConfig:
    """The user's own configuration. Raises ConfigError for a wrong file, and for one that others could have written."""
    path = user_config_path(os.environ if environ is None else environ)
    if not path.exists():
        return UserConfig(path=path, commands={})
    _refuse_foreign(path)
    from orchestrator.config.reading import read  # with pydantic, which takes long to import
    from orchestrator.config.settings import UserFile

    settings = read(path, UserFile, "docs/hosts-yaml.md has a section on config.yaml")
    given = settings.given()
    hooks = given.get("hooks", {})
    return UserConfig(
        path=path,
        commands=given.get("commands", {}),
        result_hook=_from_home(hooks.get("result", ())),
        hook_timeout=hooks.get("timeout", HOOK_SECONDS),
        tensorboard=Path(given["tensorboard"]).expanduser() if "tensorboard" in given else None,
    )


def _from_home(argv: tuple[str, ...]) -> tuple[str, ...]:
    """A program named with ~/ at its place; its arguments are its own."""
    return (str(Path(argv[0]).expanduser()), *argv[1:]) if argv else ()


def resolve_env(
    job: Job, user: UserConfig | None = None, environ: Mapping[str, str] | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """The job's environment as (plain values, secret values); by default with this user's own config.yaml.

    Raises ConfigError, which never holds a value.
    """
    environ = os.environ if environ is None else environ
    user = load_user_config(environ) if user is None else user
    plain: dict[str, str] = {}
    secrets: dict[str, str] = {}
    for variable, value in job.env.items():
        if isinstance(value, ValueSource):
            where = f"{displayed(job.path)}: env.{variable}"
            secrets[variable] = _usable(_resolved(value, user, environ, where), where)
        else:
            plain[variable] = value
    return plain, secrets


def _resolved(source: ValueSource, user: UserConfig, environ: Mapping[str, str], where: str) -> str:
    if source.kind == "env":
        if source.name not in environ:
            raise ConfigError(f"{where}: the environment variable {quoted(source.name)} is not set here")
        return environ[source.name]
    raw = _from_file(source.name, where) if source.kind == "file" else _from_command(source.name, user, where)
    try:
        return raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: what {source.kind} {quoted(source.name)} gave is not UTF-8 text") from None


def _from_file(name: str, where: str) -> bytes:
    path = Path(name).expanduser()
    if not path.is_absolute():
        raise ConfigError(f"{where}: expected an absolute path or ~/..., found {quoted(name)}")
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_VALUE + 1)
    except OSError as error:
        raise ConfigError(f"{where}: can't read {quoted(name, limit=300)}: {error.strerror}") from None


def _from_command(name: str, user: UserConfig, where: str) -> bytes:
    if name not in user.commands:
        raise ConfigError(
            f"{where}: no command {quoted(name)} in {user.path}; {did_you_mean(name, list(user.commands))}",
            hint=f"Write it there: commands: {{{quoted(name, bare=True)}: [program, argument]}}",
        )
    import subprocess  # costs 10 ms that only this needs

    argv = user.commands[name]
    hint = "Run it by itself to see why"
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_SECONDS, check=False)
    except OSError as error:
        raise ConfigError(f"{where}: command {quoted(name)} can't start: {error.strerror}", hint=hint) from None
    except subprocess.TimeoutExpired:
        text = f"{where}: command {quoted(name)} gave no value in {COMMAND_SECONDS} s"
        raise ConfigError(text, hint=hint) from None
    if done.returncode != 0:
        raise ConfigError(f"{where}: command {quoted(name)} ended with {done.returncode}", hint=hint)
    return done.stdout


def _usable(value: str, where: str) -> str:
    if not value or "\0" in value or len(value.encode("utf-8", "surrogateescape")) > LARGEST_VALUE:
        raise ConfigError(f"{where}: the value is empty, holds a NUL byte, or is longer than {LARGEST_VALUE} bytes")
    return value


def _refuse_foreign(path: Path) -> None:
    facts = path.stat()
    if facts.st_uid not in (0, os.getuid()):
        raise ConfigError(f"{path}: belongs to another user; orch would run commands from it")
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"{path}: others may write to it; orch would run commands from it", hint=f"chmod go-w {path}")
