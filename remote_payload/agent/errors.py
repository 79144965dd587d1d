"""Expected failures on a host. They cross the wire as (kind, message, hint) and become an OrchError on the laptop."""


class AgentError(Exception):
    """What went wrong, where, and what to type next. `kind` is one of KINDS."""

    KINDS = ("config", "nothing", "refused", "transfer", "torn", "failed")

    def __init__(self, message: str, hint: str = "", kind: str = "failed") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.kind = kind
