"""Values that jobs name: taken from the user's own side, never from the folder, and never told in an error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.config import UserConfig, load_user_config, resolve_env
from orchestrator.errors import ConfigError
from orchestrator.model import Job, ValueSource

NOBODY = UserConfig(path=Path("/home/me/.config/orch/config.yaml"), commands={})


def job(**env: str | ValueSource) -> Job:
    return Job(
        name="j",
        path=Path("/p/jobs/j.yaml"),
        harness_local=Path("/p"),
        harness_remote="/e",
        command=("{checkpoint}",),
        env=env,
    )


def user_file(home: Path, text: str) -> dict[str, str]:
    folder = home / "orch"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(text)
    (folder / "config.yaml").chmod(0o600)
    return {"XDG_CONFIG_HOME": str(home), "HOME": "/nonexistent"}


def told(source: ValueSource, user: UserConfig = NOBODY, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_env(job(TOKEN=source), user, environ or {})
    assert caught.value.message.startswith("/p/jobs/j.yaml: env.TOKEN: ")
    return caught.value.message.removeprefix("/p/jobs/j.yaml: env.TOKEN: ")


def test_plain_values_and_secrets_are_kept_apart(tmp_path):
    (tmp_path / "token").write_text("from a file\n")
    speak = (sys.executable, "-c", "print('from a command')")
    user = UserConfig(path=tmp_path, commands={"speak": speak})
    plain, secrets = resolve_env(
        job(
            PLAIN="1",
            A=ValueSource(kind="env", name="HF_TOKEN"),
            B=ValueSource(kind="file", name=str(tmp_path / "token")),
            C=ValueSource(kind="command", name="speak"),
        ),
        user,
        {"HF_TOKEN": "from here"},
    )
    assert plain == {"PLAIN": "1"}
    assert secrets == {"A": "from here", "B": "from a file", "C": "from a command"}


def test_a_value_that_is_not_there_says_which(tmp_path):
    assert told(ValueSource(kind="env", name="HF_TOKEN")) == "the environment variable 'HF_TOKEN' is not set here"
    absent = str(tmp_path / "no")
    assert told(ValueSource(kind="file", name=absent)) == f"can't read '{absent}': No such file or directory"
    assert told(ValueSource(kind="file", name="token")) == "expected an absolute path or ~/..., found 'token'"
    assert told(ValueSource(kind="command", name="vault")) == f"no command 'vault' in {NOBODY.path}; none is known"


def test_an_error_never_holds_the_value(tmp_path):
    secret = "hunter2"
    fail = (sys.executable, "-c", f"import sys; print('{secret}'); sys.exit('{secret}')")
    binary = (sys.executable, "-c", f"import sys; sys.stdout.buffer.write(b'{secret}\\xff')")
    user = UserConfig(path=tmp_path, commands={"fail": fail, "binary": binary, "absent": ("/no/such/program",)})
    messages = [
        told(ValueSource(kind="command", name="fail"), user),
        told(ValueSource(kind="command", name="binary"), user),
        told(ValueSource(kind="command", name="absent"), user),
        told(ValueSource(kind="env", name="X"), user, {"X": secret + "\0"}),
        told(ValueSource(kind="env", name="X"), user, {"X": ""}),
        told(ValueSource(kind="env", name="X"), user, {"X": secret * 20_000}),
    ]
    assert messages[0] == "command 'fail' ended with 1"
    assert messages[1] == "what command 'binary' gave is not UTF-8 text"
    assert messages[2] == "command 'absent' can't start: No such file or directory"
    assert not any(secret in message for message in messages)


def test_the_users_own_configuration_is_found_by_xdg_then_home(tmp_path):
    environ = user_file(tmp_path / "xdg", "commands: {vault: [pass, show, token]}\n")
    assert load_user_config(environ).commands == {"vault": ("pass", "show", "token")}
    user_file(tmp_path / "home/.config", "commands: {other: [x]}\n")
    assert load_user_config({"HOME": str(tmp_path / "home")}).commands == {"other": ("x",)}
    assert load_user_config({"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": "relative"}).commands == {
        "other": ("x",)
    }


def test_no_configuration_is_an_empty_one(tmp_path):
    assert load_user_config({"XDG_CONFIG_HOME": str(tmp_path)}).commands == {}


def test_a_wrong_configuration_is_told_with_line_and_path(tmp_path, monkeypatch):
    environ = user_file(tmp_path, "commands:\n  vault: pass show token\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_user_config(environ)
    assert caught.value.message == (
        "orch/config.yaml:2: commands.vault: expected a list: program and arguments, such as [pass, show, token], "
        "found 'pass show token'"
    )


def test_a_configuration_that_others_may_write_is_refused(tmp_path):
    environ = user_file(tmp_path, "commands: {}\n")
    (tmp_path / "orch/config.yaml").chmod(0o622)
    with pytest.raises(ConfigError, match="others may write to it"):
        load_user_config(environ)


def test_an_inventory_folder_can_not_bring_commands(tmp_path, monkeypatch):
    (tmp_path / "config.yaml").write_text("commands: {vault: [evil]}\n")
    monkeypatch.chdir(tmp_path)
    assert load_user_config({"HOME": str(tmp_path / "home")}).commands == {}
