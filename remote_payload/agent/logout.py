"""Whether this host's login manager kills what a user leaves running at logout (systemd-logind, KillUserProcesses)."""

import os
import pwd
from typing import Dict, List

from remote_payload.agent import identity

_VENDOR, _RUNTIME, _LOCAL = "usr/lib/systemd", "run/systemd", "etc/systemd"
_YES = ("1", "yes", "y", "true", "t", "on")


def kill_rule(root: str = "/", user: str = "", group: str = "") -> str:
    """What that rule does to a detached run, in words; "" where there is none. Only files are read.

    It ends the scope of a login session with all in it. Lingering saves a user's services, not what stays in the scope
    (logind.conf(5)), so it changes the advice and not the answer. `root`, `user` and `group` (the lines of
    /proc/self/cgroup) are this host's own unless given.
    """
    if not os.path.isdir(os.path.join(root, "run/systemd/system")):
        return ""  # no systemd here
    group = group or (identity.read_proc("/proc/self/cgroup") or b"").decode("utf-8", "replace")
    if "/session-" not in group:
        return ""  # not in a session's scope
    rules, user = _rules(root), user or _user()
    if rules.get("KillUserProcesses", "no").lower() not in _YES:
        return ""
    if user in rules.get("KillExcludeUsers", "root").split():
        return ""
    only = rules.get("KillOnlyUsers", "").split()
    if only and user not in only:
        return ""
    lingers = os.path.exists(os.path.join(root, "var/lib/systemd/linger", user))
    return "logind kills what %s leaves running at logout (KillUserProcesses=yes)%s: the evaluation may die then" % (
        user,
        ", lingering or not" if lingers else "",
    )


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's user without a name
        return str(os.getuid())


def _rules(root: str) -> Dict[str, str]:
    """The settings in force: the one logind.conf, then the drop-ins of all folders by name."""
    folders = [os.path.join(root, folder) for folder in (_LOCAL, _RUNTIME, _VENDOR)]
    mains = [os.path.join(folder, "logind.conf") for folder in folders]
    files = [path for path in mains if os.path.exists(path)][:1]
    found: Dict[str, str] = {}
    for folder in reversed(folders):  # of two drop-ins with one name, that of the local administrator counts
        found.update({name: os.path.join(folder, "logind.conf.d", name) for name in _names(folder)})
    rules: Dict[str, str] = {}
    for path in files + [found[name] for name in sorted(found)]:
        text = (identity.read_proc(path) or b"").decode("utf-8", "replace")
        for line in text.split("\n"):
            key, equals, value = line.partition("=")
            if equals and not line.lstrip().startswith(("#", ";")):
                rules[key.strip()] = value.strip()
    return rules


def _names(folder: str) -> List[str]:
    try:
        return [name for name in os.listdir(os.path.join(folder, "logind.conf.d")) if name.endswith(".conf")]
    except OSError:
        return []
