"""How a command on a host ended, told apart from how `ssh` ended.

`ssh` exits with 255 for a lost connection, for a command that exits with 255, and for one that a signal ended. So each
command runs under a shell that says at the end of stderr how it went; 255 without that word is a lost connection.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

SCRIPT = '"$@"; s=$?; printf " %s=%d;" "$0" $s >&2; exit $s'
LOST = 255


def new_mark() -> str:
    """A word that no command prints by chance."""
    return f"orch-ended-{secrets.token_hex(6)}"


def told(argv: Sequence[str], mark: str, *, before: str = "") -> list[str]:
    """`argv` under the shell that tells its ending, and reads `before` first; its exit status is the command's."""
    return ["sh", "-c", before + SCRIPT, mark, *argv]


def read_ending(stderr: bytes, mark: str) -> tuple[int | None, bytes]:
    """(exit status, or minus the signal; stderr without the word). The status is None where the word is missing.

    As in a shell, 129 to 159 mean that a signal ended the command.
    """
    found = re.search(rb" %s=(\d+);" % re.escape(mark.encode()), stderr)
    if found is None:
        return None, stderr
    return signal_or_status(int(found[1])), stderr[: found.start()] + stderr[found.end() :]


def signal_or_status(status: int) -> int:
    """A shell's status: minus the signal for 129 to 159, else itself."""
    return 128 - status if 128 < status < 160 else status
