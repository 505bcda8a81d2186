"""Results → bars, as SVG for light and for dark pages, without a plotting library."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from reporting.runs import Results
from reporting.tables import COLUMNS, GROUPS, OWN, Column, names, number, ranked

WIDTH = 880
GAP = 40
BAR, STEP = 12, 21
LABELS = 132
FONT = "-apple-system,BlinkMacSystemFont,'Segoe UI',Helvetica,Arial,sans-serif"


@dataclass(frozen=True)
class Colours:
    """The colours of a page."""

    page: str
    text: str
    muted: str
    bar: str
    tars: str
    own: str


THEMES = {
    "light": Colours("#ffffff", "#1f2328", "#59636e", "#d1d9e0", "#9fb6cf", "#0969da"),
    "dark": Colours("#0d1117", "#f0f6fc", "#9198a1", "#3d444d", "#4d6785", "#4493f8"),
}
PANELS = {
    "pictures_2": ("Pictures decoded per second", "2 workers, 480 × 360, to uint8 tensors"),
    "batch": ("A small sample, in batches of 256", "µs, random, from the page cache"),
    "cold": ("A sample of 100 kB, from a cold disk", "ms, random, in batches of 64"),
    "convert": ("Before reading 10,000 samples", "s, to index or to convert plain tars"),
    "remote_first": ("First sample over a network", "s, any sample, at 8 MB/s"),
    "resume": ("Resume in the middle of an epoch", "s, from the start of the process"),
}


def panel(
    results: Results, column: Column, x: float, y: float, width: float, theme: Colours
) -> tuple[str, float]:
    """Return the bars of a row, best first, and where they end."""
    direction = "more is better" if column.is_more_better else "less is better"
    title, unit = PANELS.get(column.row, (column.title, ""))
    about = f"{unit}; {direction}" if unit else direction
    parts = [
        text(x, y + 13, title, theme.text, 14, weight=600),
        text(x, y + 31, about, theme.muted, 11.5),
    ]
    y += 42
    bars = ranked(results, column)
    most, room = longest([value for _, value in bars]), width - LABELS - 52
    for name, value in bars:
        is_own = name == OWN
        colour = theme.own if is_own else theme.tars if name in READS_TARS else theme.bar
        length = max(2.0, room * min(1.0, value / most))
        shown = {"colour": theme.text if is_own else theme.muted, "size": 12.0}
        weight = 600 if is_own else 400
        base = y + BAR - 1.5
        parts += [
            text(x + LABELS - 8, base, name, **shown, anchor="end", weight=weight),
            rectangle(x + LABELS, y, length, colour),
            text(x + LABELS + length + 6, base, number(value), **shown, weight=weight),
        ]
        if value > most:
            parts.append(cut(x + LABELS + length * 0.8, y, theme.page))
        y += STEP
    return "\n".join(parts), y


def longest(values: list[float]) -> float:
    """Return the value of the longest bar; what is far beyond the others is cut there."""
    ascending = sorted(values)
    if len(ascending) > 2 and ascending[-1] > 3 * ascending[-2] > 0:
        return 1.25 * ascending[-2]
    return max([*ascending, 1e-12])


def cut(x: float, y: float, page: str) -> str:
    """Return the sign of a bar that is longer than drawn."""
    return (
        f'<path d="M{x:.1f} {y + BAR + 1:.1f} l5 -{BAR + 2} M{x + 6:.1f} {y + BAR + 1:.1f} '
        f'l5 -{BAR + 2}" stroke="{page}" stroke-width="2.5"/>'
    )


READS_TARS = set(names(lambda contestant: contestant.reads == "tars"))


def rectangle(x: float, y: float, width: float, colour: str) -> str:
    """Return a bar."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BAR}" rx="2" fill="{colour}"/>'
    )


def text(
    x: float,
    y: float,
    content: str,
    colour: str,
    size: float,
    *,
    anchor: str = "start",
    weight: int = 400,
) -> str:
    """Return a line of text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(content)}</text>'
    )


def figure(results: Results, columns: list[Column], theme: Colours, label: str) -> str:
    """Return an SVG with the panels of rows, two beside each other."""
    columns = [column for column in columns if results.values.get(column.row)]
    width = (WIDTH - GAP) / 2
    y, parts = 4.0, []
    for left in range(0, len(columns), 2):
        ends = []
        for side, column in enumerate(columns[left : left + 2]):
            drawn, end = panel(results, column, side * (width + GAP), y, width, theme)
            parts.append(drawn)
            ends.append(end)
        y = max(ends) + 22
    legend = [
        (theme.own, "wids"),
        (theme.tars, "reads plain tars too"),
        (theme.bar, "reads a form of its own"),
    ]
    x = 0.0
    for colour, words in legend:
        parts.append(f'<rect x="{x}" y="{y:.1f}" width="12" height="12" rx="2" fill="{colour}"/>')
        parts.append(text(x + 18, y + 10.5, words, theme.muted, 12))
        x += 44 + 5.7 * len(words)
    height = y + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" height="{height:.0f}" role="img" aria-label="{escape(label)}" '
        f'font-family="{escape(FONT)}">\n<title>{escape(label)}</title>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def write(results: Results, folder: Path) -> list[Path]:
    """Write all plots; return their paths."""
    plots = {"overview": ("Overview", [COLUMNS[row] for row in PANELS])}
    for group in GROUPS:
        name = group.columns[0].row.partition("_")[0]
        plots[name] = (group.title, list(group.columns))
    paths = []
    for name, (label, columns) in plots.items():
        if not any(results.values.get(column.row) for column in columns):
            continue
        for theme, colours in THEMES.items():
            path = folder / f"{name}-{theme}.svg"
            path.write_text(figure(results, columns, colours, label), encoding="utf-8")
            paths.append(path)
    return paths
