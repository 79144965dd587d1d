"""Numbers and foreign text as people read them: escaped, capped, short, and right for the terminal at hand.

Everything that came from a host goes through `shown` (or `shown_lines`) before it reaches a terminal. The result is
plain text: give it to rich as Text, or with markup off, for rich reads [brackets] as markup.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.model import Estimate

LIMIT = 200
"""characters of one piece of foreign text in a table"""
ELLIPSIS = "..."
_COUNTS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"))
_UNITS_1000 = ("B", "kB", "MB", "GB", "TB", "PB")
_UNITS_1024 = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
MINUTE, HOUR, DAY = 60, 3600, 86400


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


def size(count: int | float) -> str:
    """Bytes of a file or transfer in powers of 1000: `3.75 GB`."""
    return _scaled(count, 1000, _UNITS_1000)


def memory(count: int | float) -> str:
    """Bytes of memory in powers of 1024, as the files give them: `60 GiB`."""
    return _scaled(count, 1024, _UNITS_1024)


def throughput(bytes_per_second: float) -> str:
    """`112 MB/s`."""
    return f"{size(bytes_per_second)}/s"


def count(number: float) -> str:
    """`19.5K`, `1.2M`, `987`, `0.25`: three digits at most, and no trailing zeros."""
    for factor, letter in _COUNTS:
        if abs(number) >= factor * 0.9995:
            return f"{_three_digits(number / factor)}{letter}"
    return _three_digits(number)


def rate(number: float, unit: str) -> str:
    """`19.5K tok/s`. The unit came from a log on a host, so it is escaped."""
    return f"{count(number)} {shown(unit, 20)}".rstrip()


def duration(seconds: float) -> str:
    """`250 ms`, `12 s`, `3 min 20 s`, `1 h 05 min`, `2 d 03 h`; a negative one has its sign."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    if seconds < 9.95:
        return f"{_trimmed(f'{seconds:.1f}')} s"
    whole = round(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE:02d} s"
    minutes = round(seconds / MINUTE)
    if minutes < DAY // MINUTE:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / HOUR)
    return f"{hours // 24} d {hours % 24:02d} h"


def ago(seconds: float) -> str:
    """`12 s ago`. Less than a second, or a clock that is ahead by less than a minute, is `just now`."""
    if -MINUTE < seconds < 1:
        return "just now"
    return f"{duration(seconds)} ago" if seconds > 0 else f"in {duration(-seconds)}"


def figure(estimate: Estimate | None, sign: str = "") -> str:
    """`3.512`; with the sign `+`, `+0.098`."""
    return "-" if estimate is None else f"{estimate.value:{sign}.3f}"


def interval(estimate: Estimate | None, sign: str = "") -> str:
    """`[3.401, 3.623]`; nothing where there is none."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    return f"[{estimate.low:{sign}.3f}, {estimate.high:{sign}.3f}]"


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


def _scaled(number: float, base: int, units: tuple[str, ...]) -> str:
    scaled, last = float(number), len(units) - 1
    for position, unit in enumerate(units):
        if abs(scaled) < base * 0.9995 or position == last:
            return f"{_three_digits(scaled)} {unit}"
        scaled /= base
    raise AssertionError("the last unit always fits")


def _three_digits(number: float) -> str:
    magnitude = abs(number)
    if magnitude >= 99.95:
        return f"{number:.0f}"
    return _trimmed(f"{number:.1f}" if magnitude >= 9.995 else f"{number:.2f}")


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
