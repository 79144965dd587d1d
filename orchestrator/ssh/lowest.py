"""The lowest priority from the shell on: what comes before every command on a host that trains.

The agent lowers itself too, but only once python has started and read it: about 60 ms at normal priority, twice what
sshd needs for the whole connection (docs/measurements.md). The shell's own words for it cost nothing and start no
process but `nice`.
"""

from __future__ import annotations

from orchestrator.model import Host

SCRIPT = (
    '{ read -r pid name state parent group leader rest </proc/$$/stat && [ "$leader" = $$ ]'
    " && { echo 19 >/proc/$$/autogroup || { sleep 0.2; echo 19 >/proc/$$/autogroup; }; };"
    ' command -v nice && set -- nice -n 19 "$@"; } >/dev/null 2>&1; '
)
"""Read by /bin/sh. The weight of a session is lowered only by the shell that leads it: sshd gives each command a
session of its own, and one that somebody else began is none of ours (see remote_payload/agent/quiet.py). The kernel
takes ten of these writes a second from users other than root: a refused one is tried once more. Where there is no /proc
or no `nice` the command runs all the same."""


def before(host: Host) -> str:
    """What a shell has to read before it runs a command on this host: nothing where no training runs."""
    return SCRIPT if "train" in host.roles else ""
