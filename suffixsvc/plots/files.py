"""Charts as standalone SVG files with title, legend and colours."""

from __future__ import annotations

import html

from suffixsvc.plots import CHART_CSS, COLOURS, HEIGHT, WIDTH, Chart, svg

_TITLE, _ROW, _PER_ROW = 34, 20, 3


def svg_file(chart: Chart) -> str:
    """The chart as the text of a file; "" where it has no points."""
    inner = svg(chart)
    if not inner:
        return ""
    series = [s for s in chart.series if s.points]
    height = _TITLE + HEIGHT + _ROW * -(-len(series) // _PER_ROW) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}">',
        f"<style>{_style()}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="var(--page)"/>',
        f'<text x="12" y="22" class="title">{html.escape(chart.title)}</text>',
        f'<svg y="{_TITLE}" width="{WIDTH}" height="{HEIGHT}" {inner.removeprefix("<svg ")}',
    ]
    for i, s in enumerate(series):
        x, y = 12 + i % _PER_ROW * (WIDTH - 24) // _PER_ROW, _TITLE + HEIGHT + i // _PER_ROW * _ROW + 10
        kind = f"line c{s.colour % COLOURS}{' dashed' if s.dashed else ''}"
        parts.append(f'<path class="{kind}" d="M{x} {y}h20"/>')
        parts.append(f'<text x="{x + 26}" y="{y + 4}">{html.escape(s.name)}</text>')
    return "".join([*parts, "</svg>\n"])


def _style() -> str:
    return f"{CHART_CSS.read_text(encoding='utf-8')} svg .title {{ font: 600 15px system-ui, sans-serif; }}"
