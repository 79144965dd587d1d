"""Foreign text as people read it: escaped, capped, short, and right for the terminal at hand.

Everything that came from a host goes through `shown` (or `shown_lines`) before it reaches a terminal. The result is
plain text: give it to rich as Text, or with markup off, for rich reads [brackets] as markup.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.amounts import count, decimal
from orchestrator.measured import Estimate

LIMIT = 200
"""characters of one piece of foreign text in a table"""
ELLIPSIS = "..."


def shown(text: str | bytes, limit: int = LIMIT) -> str:
    """One line that is safe to print: at most `limit` characters, with "..." where it was cut.

    Control characters, ANSI sequences, bidirectional overrides, zero-width and undecodable characters become escapes.
    """
    if isinstance(text, bytes):
        text = text[: 4 * (limit + 1)].decode("utf-8", "backslashreplace")
    if len(text) <= limit and text.isprintable():
        return text
    pieces = [char if char.isprintable() else _escaped(char) for char in text[: limit + 1]]
    whole = "".join(pieces)
    if len(text) <= limit and len(whole) <= limit:
        return whole
    kept, room = [], max(limit - len(ELLIPSIS), 0)
    for piece in pieces:
        room -= len(piece)
        if room < 0:
            break
        kept.append(piece)
    return ("".join(kept) + ELLIPSIS)[: max(limit, 0)]


def shown_lines(text: str | bytes, limit: int = LIMIT, lines: int = 200) -> list[str]:
    """Like `shown` for each line of a log or diff, tabs as spaces; past `lines` lines the last says how many more."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    found = text.split("\n")
    if found[-1] == "":
        found.pop()
    kept = [shown(line.removesuffix("\r").expandtabs(8), limit) for line in found[:lines]]
    if len(found) > lines:
        kept.append(f"{ELLIPSIS} {len(found) - lines} more lines")
    return kept


def _escaped(char: str) -> str:
    known = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char)
    return known or char.encode("unicode_escape", "surrogatepass").decode("ascii")


def rate(number: float, unit: str) -> str:
    """`19.5K tok/s`. The unit came from a log on a host, so it is escaped."""
    return f"{count(number)} {shown(unit, 20)}".rstrip()


def figure(estimate: Estimate | None, sign: str = "") -> str:
    """`3.512`; with the sign `+`, `+0.098`."""
    return "-" if estimate is None else decimal(estimate.value, sign)


def interval(estimate: Estimate | None, sign: str = "") -> str:
    """`[3.401, 3.623]`; nothing where there is none."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    return f"[{decimal(estimate.low, sign)}, {decimal(estimate.high, sign)}]"


def measured(estimate: Estimate | None, sign: str = "") -> str:
    """`3.512 [3.401, 3.623]`."""
    return f"{figure(estimate, sign)} {interval(estimate, sign)}".rstrip()


def wants_colour(environ: Mapping[str, str], is_terminal: bool) -> bool:
    """Whether to print colours: NO_COLOR, then FORCE_COLOR, TERM=dumb, then the terminal."""
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return environ["FORCE_COLOR"] != "0"
    return is_terminal and environ.get("TERM") != "dumb"


def speaks_unicode(encoding: str | None) -> bool:
    """Whether a stream of this encoding (`sys.stdout.encoding`) can show everything."""
    return (encoding or "").lower().replace("-", "").replace("_", "") in ("utf8", "utf16", "utf32", "utf8sig")
