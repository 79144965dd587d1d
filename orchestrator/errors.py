"""Every error that a user can cause or meet. Raised where the facts are, caught once, in commands/call.py.

Each class carries the exit code that docs/exit-codes.md lists. A message says what and
where; `hint` says what to type next.
"""

from __future__ import annotations


class OrchError(Exception):
    """Base of all expected failures. `code` is the exit code of the command that meets it."""

    code = 1

    def __init__(self, message: str, *, hint: str = "", host: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.host = host


class ConfigError(OrchError):
    """A wrong inventory, job or command line."""

    code = 2


class NothingToEvaluate(OrchError):
    """No complete checkpoint was found."""

    code = 3


class HostUnreachable(OrchError):
    """The host did not answer, or a name, route or port is missing."""

    code = 4


class AuthenticationFailed(HostUnreachable):
    """The host answered but let nobody in."""


class ConnectionLost(HostUnreachable):
    """The connection went away while something was asked: the result is unknown."""


class RemotePythonError(HostUnreachable):
    """The host is there but has no usable python for the agent (none, too old, or commands are not allowed)."""


class HostKeyError(OrchError):
    """The host key is unknown, changed or revoked."""

    code = 5


class Refused(OrchError):
    """Refused before anything was done: preflight, lock, or a drifted harness without consent."""

    code = 6


class TransferError(OrchError):
    """Bytes did not arrive, or did not match."""

    code = 7


class TornCheckpoint(TransferError):
    """A record of the checkpoint does not fit its CRC: it is torn, and stays so."""


class EvaluationFailed(OrchError):
    """The evaluation failed, was lost or was cancelled."""

    code = 8


class TrainingDisturbed(OrchError):
    """Training changed or died inside a window in which orch acted."""

    code = 9


class TimeLimit(OrchError):
    """A time limit that the user set has passed; the run goes on."""

    code = 124


class Interrupted(OrchError):
    """Ctrl-C; the run goes on."""

    code = 130
