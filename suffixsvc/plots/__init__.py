"""Line charts as inline SVG that follow the colours of the page, dark or light.

A plotting library's SVG has fixed colours and a hundred kilobytes of glyphs per chart. These charts are text
and paths that the page's style sheet colours (classes ``c0`` .. ``c11``).
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["CHART_CSS", "COLOURS", "HEIGHT", "WIDTH", "Chart", "Series", "svg"]

COLOURS: Final = 12
#: style sheet of lines and text, which every page and file with a chart includes
CHART_CSS: Final = Path(__file__).with_name("chart.css")
WIDTH, HEIGHT = 640, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 12, 46
_TICKS: Final = 6


@dataclass(frozen=True, slots=True)
class Series:
    """A named line of (x, y) points. ``colour`` is a number below :data:`COLOURS`."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A line chart.

    Attributes:
        title: a short heading.
        caption: what it shows and how to read it, for readers who do not know the project.
        x_label, y_label: labels of the axes.
        series: the lines.
        log_x: a logarithmic x axis; points at x <= 0 are omitted.
        percent_y: y values are shares, shown as percentages.
        unit_square: both axes run from 0 to 1 and the diagonal is drawn.
        level: y value of a horizontal reference line.
        x_ticks: positions of the ticks of the x axis; None = round values.
    """

    title: str
    caption: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    percent_y: bool = False
    unit_square: bool = False
    level: float | None = None
    x_ticks: Sequence[float] | None = None


class _Axis:
    """Maps values to pixels."""

    def __init__(self, low: float, high: float, first: float, last: float, log: bool = False) -> None:
        self._log = log
        self.low, self.high = (math.log(low), math.log(high)) if log else (low, high)
        if self.high <= self.low:
            self.low, self.high = self.low - 0.5, self.high + 0.5
        self._first, self._last = first, last

    def at(self, value: float) -> float:
        v = math.log(value) if self._log else value
        return self._first + (v - self.low) / (self.high - self.low) * (self._last - self._first)

    def ticks(self) -> list[float]:
        return _log_ticks(self.low, self.high) if self._log else _ticks(self.low, self.high)


def svg(chart: Chart) -> str:
    """The chart as an inline ``<svg>`` element. Series without points are omitted; "" if all are."""
    series = [(s, _usable(s.points, chart.log_x)) for s in chart.series]
    series = [(s, points) for s, points in series if points]
    if not series:
        return ""
    xs = [x for _, points in series for x, _ in points]
    ys = [y for _, points in series for _, y in points] + ([] if chart.level is None else [chart.level])
    if chart.unit_square:
        xs, ys = [0, 1], [0, 1]
    # the axis begins at 0, but for charts of ratios: those show the range around their reference level
    low_y = min(0.95 * min(ys), 1.0) if chart.level is not None else 0.0
    x = _Axis(min(xs), max(xs), _LEFT, WIDTH - _RIGHT, chart.log_x)
    y = _Axis(
        min(low_y, *ys),
        max(low_y, *ys) * (1 if chart.unit_square else 1.04),
        HEIGHT - _BOTTOM,
        _TOP,
    )
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(chart.title)}">',
        *_frame(chart, x, y),
    ]
    if chart.unit_square:
        parts.append(_line([(x.at(0), y.at(0)), (x.at(1), y.at(1))], "level"))
    if chart.level is not None:
        level = y.at(chart.level)
        parts.append(_line([(_LEFT, level), (WIDTH - _RIGHT, level)], "level"))
    for s, points in series:
        parts += _drawn(s, points, x, y, chart.percent_y)
    return "".join(parts) + "</svg>"


def _usable(points: Sequence[tuple[float, float]], log: bool) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y) and (x > 0 or not log)]


def _drawn(
    series: Series, points: Sequence[tuple[float, float]], x: _Axis, y: _Axis, percent: bool
) -> list[str]:
    at = [(x.at(px), y.at(py)) for px, py in points]
    kind = f"c{series.colour % COLOURS}" + (" dashed" if series.dashed else "")
    parts = [_line(at, f"line {kind}")]
    if not series.dashed:
        for (px, py), (cx, cy) in zip(points, at, strict=True):
            shown = f"{py:.1%}" if percent else f"{py:.3g}"
            title = html.escape(f"{series.name}: {shown} at {px:.4g}")
            place = f'cx="{cx:.1f}" cy="{cy:.1f}" r="3"'
            parts.append(f'<circle class="dot {kind}" {place}><title>{title}</title></circle>')
    return parts


def _frame(chart: Chart, x: _Axis, y: _Axis) -> list[str]:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    parts = []
    for value in y.ticks():
        at = y.at(value)
        shown = f"{value:.0%}" if chart.percent_y else f"{value:g}"
        parts.append(_line([(_LEFT, at), (right, at)], "grid"))
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" class="end">{shown}</text>')
    for value in x.ticks() if chart.x_ticks is None else chart.x_ticks:
        at = x.at(value)
        parts.append(_line([(at, bottom), (at, bottom + 4)], "axis"))
        parts.append(f'<text x="{at:.1f}" y="{bottom + 18}" class="mid">{_short(value)}</text>')
    parts.append(_line([(_LEFT, bottom), (right, bottom)], "axis"))
    middle = (_LEFT + right) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" class="mid dim">{html.escape(chart.x_label)}</text>')
    half = (_TOP + bottom) / 2
    turned = f'transform="translate(14 {half}) rotate(-90)"'
    parts.append(f'<text {turned} class="mid dim">{html.escape(chart.y_label)}</text>')
    return parts


def _line(points: Sequence[tuple[float, float]], kind: str) -> str:
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path class="{kind}" d="{path}"/>'


def _short(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}"


def _ticks(low: float, high: float) -> list[float]:
    """Round values between ``low`` and ``high``."""
    rough = (high - low) / _TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between two logarithms; powers of ten only above four decades."""
    wide = high - low > math.log(10_000)
    ticks = []
    for power in range(math.floor(low / math.log(10)), math.ceil(high / math.log(10)) + 1):
        for m in (1,) if wide else (1, 2, 5):
            value = m * 10.0**power
            if low - 1e-9 <= math.log(value) <= high + 1e-9:
                ticks.append(float(f"{value:.3g}"))
    return ticks
