"""Drawing as SVG: a frame with axes, and lines, bands and marks in it. Pure functions; texts come in escaped.

Colours and fonts are classes of page.css, so that one drawing serves light and dark. No style attributes: the page's
content security policy forbids them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

Pair = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A drawing area: size and margins in pixels, domains in the data's units."""

    width: int
    height: int
    xs: Pair
    ys: Pair
    left: int = 46
    right: int = 16
    top: int = 14
    bottom: int = 34

    def x(self, value: float) -> float:
        """Pixel of a value on the x axis."""
        return self.left + _share(value, self.xs) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        """Pixel of a value on the y axis; values grow upwards."""
        return self.height - self.bottom - _share(value, self.ys) * (self.height - self.top - self.bottom)

    def attributes(self) -> str:
        """What the script needs to place things: pixels and values at both ends of both axes."""
        numbers = (self.left, self.width - self.right, *self.xs, self.height - self.bottom, self.top, *self.ys)
        return f'data-frame="{" ".join(_exact(number) for number in numbers)}"'


def _share(value: float, domain: Pair) -> float:
    low, high = domain
    return 0.5 if high == low else (value - low) / (high - low)


def padded(values: Iterable[float], share: float = 0.08) -> Pair:
    """A domain that holds all values with some room around them."""
    known = list(values)
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    room = (high - low) * share or abs(high) * share or 1.0
    return low - room, high + room


def ticks(domain: Pair, about: int) -> list[float]:
    """Round numbers within the domain, about so many: multiples of 1, 2 or 5 times a power of ten."""
    low, high = domain
    if not high > low:
        return [low]
    rough = (high - low) / max(about, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.7)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_label(value: float, step: float) -> str:
    """`0.05`, `3`, `20k`, `1.5M`: as many digits as neighbours need to differ."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if step >= factor / 10 and abs(value) >= factor:
            return f"{value / factor:.10g}{letter}"
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    return f"{value:.{digits}f}"


def axes(frame: Frame, x_title: str, y_title: str, *, x_ticks: int = 6, y_ticks: int = 5, whole: bool = False) -> str:
    """Grid, tick labels and titles; `whole` keeps the x ticks to integers."""
    parts = []
    ys = ticks(frame.ys, y_ticks)
    for value in ys:
        y = _pixel(frame.y(value))
        parts.append(f'<path class="grid" d="M{frame.left} {y}H{frame.width - frame.right}"/>')
        parts.append(_text(frame.left - 7, frame.y(value) + 4, tick_label(value, _gap(ys)), "tick end"))
    xs = [value for value in ticks(frame.xs, x_ticks) if not whole or value == round(value)]
    for value in xs:
        parts.append(_text(frame.x(value), frame.height - frame.bottom + 18, tick_label(value, _gap(xs)), "tick mid"))
    floor = _pixel(frame.height - frame.bottom)
    parts.append(f'<path class="axis" d="M{frame.left} {floor}H{frame.width - frame.right}"/>')
    parts.append(_text(frame.width - frame.right, frame.height - 2, x_title, "title end"))
    parts.append(_text(4, 13, y_title, "title"))
    return "".join(parts)


def _gap(values: Sequence[float]) -> float:
    return values[1] - values[0] if len(values) > 1 else 1.0


def line(frame: Frame, points: Sequence[Pair], kind: str) -> str:
    """A polyline of a class."""
    return f'<path class="line {kind}" d="{path(frame, points)}"/>' if len(points) > 1 else ""


def path(frame: Frame, points: Iterable[Pair]) -> str:
    """The path data of a polyline."""
    pixels = [f"{_pixel(frame.x(x))} {_pixel(frame.y(y))}" for x, y in points]
    return "M" + "L".join(pixels) if pixels else ""


def band(frame: Frame, rows: Sequence[tuple[float, float, float]], kind: str) -> str:
    """The area between low and high over x: rows of (x, low, high)."""
    if len(rows) < 2:
        return ""
    outline = [(x, high) for x, _, high in rows] + [(x, low) for x, low, _ in reversed(rows)]
    return f'<path class="band {kind}" d="{path(frame, outline)}Z"/>'


def whiskers(frame: Frame, rows: Sequence[tuple[float, float, float]], kind: str) -> str:
    """An interval at each x as a vertical stroke: rows of (x, low, high)."""
    strokes = [f"M{_pixel(frame.x(x))} {_pixel(frame.y(low))}V{_pixel(frame.y(high))}" for x, low, high in rows]
    return f'<path class="whisker {kind}" d="{"".join(strokes)}"/>' if strokes else ""


def dots(frame: Frame, points: Sequence[Pair], kind: str) -> str:
    """Round marks: one path of strokes without length, which round caps make dots. A twentieth of so many circles."""
    strokes = [f"M{_pixel(frame.x(x))} {_pixel(frame.y(y))}h0" for x, y in points]
    return f'<path class="dots {kind}" d="{"".join(strokes)}"/>' if strokes else ""


def level(frame: Frame, value: float, kind: str) -> str:
    """A horizontal line across the frame."""
    return f'<path class="line {kind}" d="M{frame.left} {_pixel(frame.y(value))}H{frame.width - frame.right}"/>'


def end_labels(frame: Frame, labels: Sequence[tuple[float, str, str]], room: float = 15.0) -> str:
    """Names at the right end of lines, moved apart where they would overlap: rows of (y value, text, class)."""
    placed = []
    last = -math.inf
    for value, text, kind in sorted(labels, key=lambda row: -row[0]):
        y = max(frame.y(value) + 4, last + room)
        last = y
        placed.append((y, text, kind))
    excess = last - (frame.height - frame.bottom)
    shift = max(0.0, excess)
    return "".join(_text(frame.width - frame.right + 8, y - shift, text, f"name {kind}") for y, text, kind in placed)


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{_pixel(x)}" y="{_pixel(y)}">{text}</text>'


def runs_of(points: Iterable[tuple[float, float | None]]) -> Iterator[list[Pair]]:
    """Stretches of points without a gap: a missing value ends one."""
    stretch: list[Pair] = []
    for x, y in points:
        if y is not None:
            stretch.append((x, y))
        elif stretch:
            yield stretch
            stretch = []
    if stretch:
        yield stretch


def _pixel(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _exact(value: float) -> str:
    return f"{value:.8g}"
