"""A login manager that kills at logout is seen before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from evalhost import EvalHost

from remote_payload.agent import evalbox, logout

SESSION = "0::/user.slice/user-1000.slice/session-3.scope\n"
SERVICE = "0::/system.slice/cron.service\n"


def root_with(tmp_path: Path, files: dict[str, str], systemd: bool = True) -> str:
    if systemd:
        (tmp_path / "run/systemd/system").mkdir(parents=True)
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(tmp_path)


KILLS = {"etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\n"}


@pytest.mark.parametrize(
    ("files", "user", "group", "warned"),
    [
        (KILLS, "ann", SESSION, True),
        (KILLS, "ann", "4:memory:/\n1:name=systemd:/user.slice/user-1000.slice/session-c2.scope\n", True),
        (KILLS, "ann", SERVICE, False),
        (KILLS, "root", SESSION, False),
        ({}, "ann", SESSION, False),
        ({"etc/systemd/logind.conf": "#KillUserProcesses=yes\n"}, "ann", SESSION, False),
        ({**KILLS, "etc/systemd/logind.conf.d/10-no.conf": "KillUserProcesses=no\n"}, "ann", SESSION, False),
        ({"usr/lib/systemd/logind.conf.d/x.conf": "KillUserProcesses=1\n"}, "ann", SESSION, True),
        (
            {
                "usr/lib/systemd/logind.conf.d/x.conf": "KillUserProcesses=yes\n",
                "etc/systemd/logind.conf.d/x.conf": "[Login]\n",
            },
            "ann",
            SESSION,
            False,
        ),
        ({"etc/systemd/logind.conf": "KillUserProcesses=yes\nKillOnlyUsers=bob\n"}, "ann", SESSION, False),
        ({"etc/systemd/logind.conf": "KillUserProcesses=yes\nKillOnlyUsers=bob ann\n"}, "ann", SESSION, True),
        ({"etc/systemd/logind.conf": "KillUserProcesses=yes\nKillExcludeUsers=ann\n"}, "ann", SESSION, False),
        ({"etc/systemd/logind.conf": "KillUserProcesses=yes\nKillExcludeUsers=ann\n"}, "root", SESSION, True),
    ],
)
def test_the_rule_is_told_to_whom_it_would_hit(
    tmp_path: Path, files: dict[str, str], user: str, group: str, warned: bool
) -> None:
    said = logout.kill_rule(root_with(tmp_path, files), user, group)
    assert bool(said) == warned
    assert not warned or (user in said and "KillUserProcesses" in said)


def test_lingering_is_not_taken_for_protection(tmp_path: Path) -> None:
    files = {**KILLS, "var/lib/systemd/linger/ann": ""}
    assert "lingering or not" in logout.kill_rule(root_with(tmp_path, files), "ann", SESSION)


def test_without_systemd_there_is_no_such_rule(tmp_path: Path) -> None:
    assert logout.kill_rule(root_with(tmp_path, KILLS, systemd=False), "ann", SESSION) == ""


def test_the_warning_comes_with_the_look_that_precedes_every_start(
    eval_host: EvalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote_payload.agent.logout.kill_rule", lambda: "logind kills")
    assert evalbox.facts({"workdir": str(eval_host.workdir)}, None)["warning"] == "logind kills"
