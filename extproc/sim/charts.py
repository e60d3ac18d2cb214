"""Line charts as SVG text, with light and dark colours from the page's own style sheet."""

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 12, 40
#: Most points drawn of one line; more can't be seen at this width.
_MOST_POINTS = 400
#: Colour classes of the style sheet.
COLOURS = 8


class Line(NamedTuple):
    """One line of a chart: points in the order of x."""

    name: str
    points: Sequence[tuple[float, float]]


class Axis(NamedTuple):
    """An axis: its title, its ends, and whether it is logarithmic (then both ends are above 0)."""

    title: str
    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value lies, 0..1."""
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(max(value, low)), math.log(low), math.log(high)
        return min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.0

    def ticks(self) -> list[float]:
        """Round values along it: powers of ten when logarithmic, else steps of 1, 2 or 5."""
        if self.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            return [10.0**power for power in range(first, last + 1)]
        span = self.high - self.low
        if span <= 0:
            return [self.low]
        raw = span / 6
        unit = 10.0 ** math.floor(math.log10(raw))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def chart(lines: Sequence[Line], x: Axis, y: Axis, label: str) -> str:
    """A chart with axes, a grid and a legend; `label` says in words what it shows."""
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">']
    parts += [_vertical(x, tick) for tick in x.ticks()]
    parts += [_horizontal(y, tick) for tick in y.ticks()]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 4}" text-anchor="middle">{escape(x.title)}</text>')
    parts += [
        f'<path class="line c{number % COLOURS}" d="{_path(line, x, y)}"><title>{escape(line.name)}</title></path>'
        for number, line in enumerate(lines)
    ]
    parts.append("</svg>")
    keys = "".join(
        f'<li><i class="k{number % COLOURS}"></i>{escape(line.name)}</li>'
        for number, line in enumerate(lines)
    )
    return f'<figure><figcaption>{escape(y.title)}</figcaption>{"".join(parts)}<ul class="key">{keys}</ul></figure>'


def _across(x: Axis, value: float) -> float:
    return _LEFT + x.place(value) * (_WIDTH - _LEFT - _RIGHT)


def _down(y: Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - y.place(value) * (_HEIGHT - _TOP - _BOTTOM)


def _vertical(x: Axis, tick: float) -> str:
    at = _across(x, tick)
    return (
        f'<path class="grid" d="M{at:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>'
        f'<text x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 15}" text-anchor="middle">{tick:g}</text>'
    )


def _horizontal(y: Axis, tick: float) -> str:
    at = _down(y, tick)
    return (
        f'<path class="grid" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>'
        f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{tick:g}</text>'
    )


def _path(line: Line, x: Axis, y: Axis) -> str:
    points = thinned(line.points)
    return "".join(
        f"{'L' if number else 'M'}{_across(x, px):.1f} {_down(y, py):.1f}"
        for number, (px, py) in enumerate(points)
    )


def thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """At most some hundred points, evenly taken, the last always among them."""
    if len(points) <= _MOST_POINTS:
        return points
    step = (len(points) - 1) / (_MOST_POINTS - 1)
    return [points[round(number * step)] for number in range(_MOST_POINTS)]


def top_of(lines: Sequence[Line], least: float, pick: Callable[[float], float] = float) -> float:
    """The highest value of the lines, at least `least`."""
    return max([least, *(pick(value) for line in lines for _, value in line.points)])
