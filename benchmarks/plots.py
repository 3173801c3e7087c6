"""Bars with their intervals, as SVG. Only text: nothing is measured here."""

from __future__ import annotations

from xml.sax.saxutils import escape

from benchmarks.report import Plot

__all__ = ["drawn"]

WIDTH, LABELS, VALUES = 720, 230, 120
ROW, BAR, TOP, BOTTOM = 30, 16, 44, 16

_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-weight: 600; font-size: 15px }
  .bar { fill: #8c959f } .ours { fill: #1a7f37 }
  .interval { stroke: #1f2328; stroke-width: 1.5 } .limit { stroke: #cf222e; stroke-dasharray: 4 3 }
  .background { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .bar { fill: #6e7681 } .ours { fill: #3fb950 } .interval { stroke: #e6edf3 }
    .background { fill: #0d1117 }
  }
"""


def drawn(plot: Plot) -> str:
    """The plot as an SVG document. Bars of Holdfast have a colour of their own; a dashed line is the limit."""
    height = TOP + ROW * len(plot.bars) + BOTTOM
    most = max([bar.high for bar in plot.bars.values()] + [plot.limit or 0.0]) or 1.0
    scale = (WIDTH - LABELS - VALUES) / most
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(_told(plot))}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="background" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="12" y="24">{escape(plot.title)}</text>',
    ]
    for number, (name, bar) in enumerate(plot.bars.items()):
        top = TOP + number * ROW
        middle = top + BAR / 2
        low, high, end = (LABELS + value * scale for value in (bar.low, bar.high, bar.median))
        kind = "bar ours" if name.startswith("Holdfast") else "bar"
        parts += [
            f'<text x="{LABELS - 10}" y="{middle + 4:.1f}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="{kind}" x="{LABELS}" y="{top}" width="{end - LABELS:.1f}" height="{BAR}" rx="2"/>',
            f'<line class="interval" x1="{low:.1f}" x2="{high:.1f}" y1="{middle:.1f}" y2="{middle:.1f}"/>',
            f'<text x="{max(high, end) + 8:.1f}" y="{middle + 4:.1f}">{escape(_figure(bar.median, plot.unit))}</text>',
        ]
    if plot.limit is not None:
        at = LABELS + plot.limit * scale
        parts.append(f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 8}" y2="{height - BOTTOM + 4}"/>')
    return "\n".join([*parts, "</svg>", ""])


def _told(plot: Plot) -> str:
    """The same in words, for those who cannot see it."""
    told = [f"{name}: {_figure(bar.median, plot.unit)}" for name, bar in plot.bars.items()]
    limit = [] if plot.limit is None else [f"limit: {_figure(plot.limit, plot.unit)}"]
    return f"{plot.title}. {'; '.join(told + limit)}"


def _figure(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
