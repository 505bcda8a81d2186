"""Results → the Markdown of the report: tables, goals, what is lost, and the machine."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from network import BESIDE, ROWS, Bound, verdict
from reporting.environments import CONTESTANTS, Contestant
from reporting.runs import Results

OWN = "wids"


@dataclass(frozen=True)
class Column:
    """A row of the report, which stands in a column of its table.

    Attributes:
        row: Its name in the results.
        title: Its head, with the unit.
        scale: What a number is multiplied by before it is shown.
        is_more_better: Whether the largest number wins.
        what: What is compared, as part of a sentence.
    """

    row: str
    title: str
    scale: float
    what: str
    is_more_better: bool = False

    def better(self, a: float, b: float) -> bool:
        """Return whether ``a`` is better than ``b``."""
        return a > b if self.is_more_better else a < b


@dataclass(frozen=True)
class Group:
    """A table."""

    title: str
    columns: tuple[Column, ...]


GROUPS = (
    Group(
        "Reading samples",
        (
            Column("single", "one at a time, µs", 1e6, "single random samples"),
            Column("batch", "256 at a time, µs each", 1e6, "batches of random samples"),
            Column("cold", "cold, 64 at a time, ms each", 1e3, "cold random samples"),
        ),
    ),
    Group(
        "Before the first sample",
        (
            Column("convert", "index or convert 10 MB, s", 1, "the first index or conversion"),
            Column("convert_nbytes", "written, MB", 1e-6, "bytes written before reading"),
            Column("import", "import, s", 1, "import"),
            Column("start", "start, s", 1, "the start of a program"),
            Column("open", "open, ms", 1e3, "opening a dataset"),
            Column("memory", "memory, MB", 1e-6, "memory"),
        ),
    ),
    Group(
        "An epoch of small samples",
        (
            Column("epoch_0", "in the process, µs each", 1e6, "an epoch without workers"),
            Column("epoch_2", "2 workers, µs each", 1e6, "an epoch with 2 workers"),
            Column(
                "epoch_2_cpu",
                "2 workers, processor µs each",
                1e6,
                "processor time of an epoch with 2 workers",
            ),
        ),
    ),
    Group(
        "An epoch of pictures, decoded",
        (
            *(
                Column(
                    f"pictures_{n}",
                    f"{title}, per second",
                    1,
                    f"pictures decoded {title}",
                    is_more_better=True,
                )
                for n, title in enumerate(("in the process", "by 1 worker", "by 2 workers"))
            ),
            Column(
                "pictures_2_cpu",
                "2 workers, processor ms each",
                1e3,
                "processor time of a picture",
            ),
        ),
    ),
    Group(
        "An epoch of random crops, by the caller's own function",
        (
            Column(
                "crops_2",
                "224² of 500 × 375 by Pillow, 2 workers, per second",
                1,
                "pictures cropped by the caller's own function",
                is_more_better=True,
            ),
        ),
    ),
    Group(
        "Over a network of 8 MB/s",
        (
            Column("remote_epoch", "epoch, s", 1, "a remote epoch"),
            Column("remote_first", "first sample, s", 1, "the first remote sample"),
            Column(
                "remote_first_nbytes", "fetched for it, MB", 1e-6, "bytes fetched for one sample"
            ),
        ),
    ),
    Group(
        "The first 1,024 random remote samples of 128 kB, 64 at a time, with the opening",
        (
            Column("remote_random", "processor, ms each", 1e3, "processor time of a remote sample"),
            Column("remote_random_s", "ms each", 1e3, "random remote samples"),
            Column("remote_random_nbytes", "fetched, MB each", 1e-6, "bytes fetched for each"),
        ),
    ),
    Group(
        "Over connections of 20 MB/s each",
        (
            Column(
                "connections",
                "epoch, MB/s",
                1e-6,
                "an epoch over connections of 20 MB/s",
                is_more_better=True,
            ),
        ),
    ),
    Group(
        "Resuming, and the order of a billion samples",
        (
            Column("resume", "resume, s", 1, "resuming"),
            Column("order", "first index, s", 1, "the first index of a billion"),
            Column("order_each", "next ones, µs each", 1e6, "further indices of a billion"),
        ),
    ),
)
COLUMNS = {column.row: column for group in GROUPS for column in group.columns}


Ratio = tuple[float, list[float]]


@dataclass(frozen=True)
class Goal:
    """A bound that a ratio of two numbers of one run has to keep.

    Attributes:
        text: What has to hold.
        ratio: Returns the ratio of the medians, which the tables show and the bound is for, and the
            ratios of the turns; None if they were not measured.
        bound: The bound.
        is_least: Whether the ratio has to be at least the bound, instead of at most.
    """

    text: str
    ratio: Callable[[Results], Ratio | None]
    bound: float
    is_least: bool = False

    def line(self, results: Results) -> str:
        """Return the row of the table of goals."""
        found = self.ratio(results)
        sign = "≥" if self.is_least else "≤"
        if found is None:
            return f"| {self.text} | {sign} {self.bound:g} | not measured | |"
        middle, ratios = round(found[0], 9), found[1]
        is_met = middle >= self.bound if self.is_least else middle <= self.bound
        # Rounded towards the bound that is missed, so that no number looks like another verdict.
        shown = math.floor(middle * 100) if self.is_least else math.ceil(middle * 100)
        spread = f"{shown / 100:.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
        return (
            f"| {self.text} | {sign} {self.bound:g} | {spread} | {'yes' if is_met else '**no**'} |"
        )


def ratios(results: Results, row: str, names: list[str], *, of: str = OWN) -> Ratio | None:
    """Return one library's median by that of the best of others, and the same turn by turn."""
    values = results.values.get(row, {})
    others = [values[name] for name in names if name in values and name != of]
    if of not in values or not others:
        return None
    pick = max if COLUMNS[row].is_more_better else min
    best = min(others, key=statistics.median) if pick is min else max(others, key=statistics.median)
    turns = [own / other for own, other in zip(values[of], best, strict=False)]
    return statistics.median(values[of]) / statistics.median(best), turns


def names(condition: Callable[[Contestant], bool] = lambda _: True) -> list[str]:
    """Return the names of the libraries that compete."""
    return [c.name for c in CONTESTANTS if not c.is_limit and condition(c)]


def _remote_ratio(results: Results) -> Ratio | None:
    seconds = results.values.get("remote_epoch", {}).get(OWN)
    best_s = results.about.get("remote_best_s")
    if not (seconds and best_s):
        return None
    return statistics.median(seconds) / best_s, [s / best_s for s in seconds]


def goals() -> tuple[Goal, ...]:
    """Return the bounds that the project set itself."""
    return (
        *(
            Goal(
                f"Pictures decoded {where}, to the best other library",
                lambda results, n=n: ratios(results, f"pictures_{n}", names()),
                1.2,
                is_least=True,
            )
            for n, where in enumerate(("in the process", "by 1 worker", "by 2 workers"))
        ),
        Goal(
            "Batches of small samples, to LMDB with samples",
            lambda results: ratios(results, "batch", ["LMDB"]),
            1.5,
        ),
        Goal(
            "Cold random reads, to `pread` with the same queue",
            lambda results: ratios(results, "cold", ["pread"]),
            1.3,
        ),
        Goal("Remote epoch, to bytes / rate", _remote_ratio, 1.1),
    )


def number(value: float) -> str:
    """Return a number with three digits."""
    if value < 0.001:
        return "0" if value < 1e-5 else f"{value:.1g}"
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def best(results: Results, column: Column, among: list[str]) -> str | None:
    """Return the library with the best median."""
    values = results.values.get(column.row, {})
    medians = {name: statistics.median(values[name]) for name in among if name in values}
    if not medians:
        return None
    pick = max if column.is_more_better else min
    return pick(medians, key=lambda name: medians[name])


def ranked(results: Results, column: Column) -> list[tuple[str, float]]:
    """Return the medians of the libraries in a row, best first."""
    values = results.values.get(column.row, {})
    medians = [
        (name, statistics.median(values[name]) * column.scale) for name in names() if name in values
    ]
    return sorted(medians, key=lambda item: item[1], reverse=column.is_more_better)


def cell(results: Results, column: Column, name: str, first: str | None) -> str:
    """Return a cell: the median, and least to most."""
    values = [value * column.scale for value in results.values.get(column.row, {}).get(name, [])]
    if not values:
        return "–"
    middle, _, rest = spread(values).partition(" ")
    text = f"**{middle}**" if name == first else middle
    return f"{text} {rest}" if rest else text


def table(
    results: Results, group: Group, contestants: list[Contestant], *, with_reads: bool
) -> str:
    """Return a table: libraries below each other, its rows beside each other.

    Args:
        results: What was measured.
        group: The rows.
        contestants: The libraries.
        with_reads: Whether a column says what each library reads.
    """
    firsts = {column: best(results, column, names()) for column in group.columns}
    lines = [
        "| | " + "reads | " * with_reads + " | ".join(c.title for c in group.columns) + " |",
        "|---|" + "---|" * (len(group.columns) + with_reads),
    ]
    for contestant in contestants:
        name = contestant.name
        cells = [cell(results, column, name, firsts[column]) for column in group.columns]
        if all(text == "–" for text in cells):
            continue
        shown = f"*{name}*" if contestant.is_limit else name
        reads = [contestant.reads] * with_reads
        lines.append("| " + " | ".join([shown, *reads, *cells]) + " |")
    return f"### {group.title}\n\n" + "\n".join(lines)


def losses(results: Results) -> list[str]:
    """Return where others are better, and by how much: the best, and the best with plain tars."""
    lines = []
    plain = names(lambda contestant: contestant.reads == "tars")
    for column in COLUMNS.values():
        values = results.values.get(column.row, {})
        if OWN not in values:
            continue
        own = statistics.median(values[OWN]) * column.scale
        better = {name: v for name, v in ranked(results, column) if column.better(v, own)}
        if not better:
            continue
        unit = column.title.rpartition(", ")[2]
        parts = []
        first_plain = next((name for name in better if name in plain), None)
        for name in dict.fromkeys(filter(None, (next(iter(better)), first_plain))):
            value = better[name]
            factor = value / own if column.is_more_better else own / max(value, 1e-12)
            size = f", {factor:.2f} ×" if factor < 100 else ""
            note = " (plain tars too)" if name in plain else ""
            parts.append(f"{name}{note} {number(value)}{size}")
        lines.append(f"- **{column.what}**, {unit}: wids {number(own)}; {'; '.join(parts)}.")
    return lines


def reasons(results: Results, contestants: list[Contestant]) -> list[str]:
    """Return why cells are empty, and rows without a number left out of their tables."""
    empty: dict[tuple[str, str], list[str]] = {}
    for name in [contestant.name for contestant in contestants if not contestant.is_limit]:
        by_reason: dict[str, list[str]] = {}
        for row, missing in results.reasons.items():
            if name in missing and row in COLUMNS:
                by_reason.setdefault(missing[name], []).append(COLUMNS[row].what)
        for reason, whats in by_reason.items():
            empty.setdefault((", ".join(whats), reason), []).append(name)
    return [f"- {', '.join(them)}, {whats}: {why}." for (whats, why), them in empty.items()]


def exactness(results: Results) -> str:
    """Return which libraries resume with exactly the next batch."""
    exact = results.values.get("exact", {})
    yes = [name for name in names() if name in exact and all(exact[name])]
    no = [name for name in names() if name in exact and not all(exact[name])]
    text = f"The first batch after resuming is exactly the next one: {', '.join(yes)}."
    return text + (f" It is another one: {', '.join(no)}." if no else "")


def machine(results: Results) -> str:
    """Return the paragraph about the machine and the versions."""
    about = results.about
    rounds = "1 round" if about["rounds"] == 1 else f"{about['rounds']} rounds"
    own = results.versions.get(OWN, {})
    versions = "; ".join(
        f"{name}: " + ", ".join(f"{package} {version}" for package, version in found.items())
        for name, versions in results.versions.items()
        if name in names()
        and (found := {p: v for p, v in versions.items() if name == OWN or own.get(p) != v})
    )
    rows: dict[str, list[str]] = {}
    for row, when in about.get("again", {}).items():
        rows.setdefault(when, []).append(row)
    again = "".join(f" Measured again on {when}: {', '.join(some)}." for when, some in rows.items())
    return (
        f"{about['machine']}. {rounds} on {about['date']} of commit "
        f"`{about['commit']}`; load average {about['load']}, {about['priority']} (the machine was "
        f"{'shared with other work' if about['is_shared'] else 'otherwise idle'}).{again}\n\n"
        f"Versions, of others where they differ from those of {OWN}: {versions}."
    )


def report(results: Results) -> str:
    """Return the generated part of the page."""
    contestants = [c for c in CONTESTANTS if c.name in results.versions]
    parts = ["## Goals", _goals(results), "## What is lost"]
    parts.append("\n".join(losses(results)) or "Nothing.")
    parts.append("## Tables")
    for group in GROUPS:
        if not any(column.row in results.values for column in group.columns):
            continue
        parts.append(table(results, group, contestants, with_reads=parts[-1] == "## Tables"))
        if group.columns[0].row == "resume" and "exact" in results.values:
            parts.append(exactness(results))
    if results.network:
        parts.append(networks(results))
    parts.append("### Empty cells")
    parts.append("\n".join(reasons(results, contestants)) or "None.")
    parts += ["### Machine and versions", machine(results)]
    return "\n\n".join(parts)


def networks(results: Results) -> str:
    """Return the tables of remote reading over networks that are limited.

    A row shows what it measures and its own bounds. Bounds that several rows have, such as those of
    memory, are the second table, with the worst of their medians.
    """
    entries = [
        (row, bound, values)
        for row in ROWS
        for bound in row.bounds
        if (values := results.network.get(row.name, {}).get(bound.metric, {}).get(OWN))
        and (bound.must is not None or bound is row.bounds[0])
    ]
    further = Counter(bound for row, bound, _ in entries if bound is not row.bounds[0])
    medians: dict[Bound, list[float]] = {bound: [] for bound, n in further.items() if n > 1}
    lines = ["| | | must | aim | measured | kept | beside it |", "|---|---|---|---|---|---|---|"]
    for row, bound, values in entries:
        middle = statistics.median(values)
        title = beside = ""
        if bound is row.bounds[0]:
            title = row.title
            beside = ", ".join(
                f"{program} {number(statistics.median(clients[BESIDE]))} {unit}"
                for (program, _, unit), clients in (
                    (metric.rpartition(", "), clients)
                    for metric, clients in results.network[row.name].items()
                )
                if BESIDE in clients
            )
        elif bound in medians:
            medians[bound].append(middle)
            continue
        lines.append(
            f"| {title} | {bound.metric} | {bound.must_text} | {bound.aim_text} | "
            f"{spread(values)} | {_kept(bound, middle)} | {beside} |"
        )
    if medians:
        lines += ["", "| bounds of several rows | must | rows | worst | kept |"]
        lines.append("|---|---|---|---|---|")
    for bound, found in medians.items():
        worst = (min if bound.is_least else max)(found)
        lines.append(
            f"| {bound.metric} | {bound.must_text} | {len(found)} | {number(worst)} | "
            f"{_kept(bound, worst)} |"
        )
    return "### Remote shards, over networks that are limited\n\n" + "\n".join(lines)


def _kept(bound: Bound, value: float) -> str:
    """Return whether a bound is kept, as a cell."""
    if bound.must is None:
        return ""
    return {"aim": "yes, aim", "must": "yes"}.get(verdict(bound, value), "**no**")


def spread(values: list[float]) -> str:
    """Return the median, and least to most."""
    middle, low, high = map(number, (statistics.median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low}–{high})"


def _goals(results: Results) -> str:
    lines = ["| | bound | measured | kept |", "|---|---|---|---|"]
    plain = names(lambda contestant: contestant.reads == "tars")
    rows = [row for row in COLUMNS if OWN in results.values.get(row, {})]
    behind = [row for row in rows if best(results, COLUMNS[row], plain) not in (OWN, None)]
    verdict = "**no**: *plain tars too*, below" if behind else "yes"
    lines.append(
        f"| First among all that read plain tars, in each of {len(rows)} rows | {len(rows)} | "
        f"{len(rows) - len(behind)} | {verdict} |"
    )
    lines += [goal.line(results) for goal in goals()]
    return "\n".join(lines)


FRONT = {
    "pictures_2": "pictures per second, 2 workers",
    "batch": "random samples, 256 at a time, µs each",
    "cold": "cold random samples, ms each",
    "connections": "remote epoch, 20 MB/s a connection, MB/s",
    "remote_random": "processor for a random remote sample of 128 kB, ms",
    "remote_first": "first sample of a remote dataset, s",
    "convert": "index or convert 10 MB, s",
    "resume": "resume in the middle of an epoch, s",
}
"""The rows of README's table, and their names there."""
LIMITS = {
    "pictures_2": ("wids, Pillow", "the same, wids without the extra `turbo`"),
    "remote_random": ("obstore", "the same, obstore by hand"),
}
"""What is shown below one of them, in the column of wids."""
FRONT_NAMES = (
    *(OWN, "wids 0.1.11", "webdataset", "mosaicml-streaming", "litdata", "HF datasets"),
    *("webshart", "LanceDB"),
)


def front_table(results: Results) -> str:
    """Return the table of README."""

    def shown(row: str, name: str) -> str:
        values = results.values.get(row, {}).get(name)
        return number(statistics.median(values) * COLUMNS[row].scale) if values else "no"

    lines = [["", *FRONT_NAMES]]
    for row, title in FRONT.items():
        lines.append([title, *(shown(row, name) for name in FRONT_NAMES)])
        if row in LIMITS:
            name, title_of_limit = LIMITS[row]
            lines.append([title_of_limit, shown(row, name), *[""] * (len(FRONT_NAMES) - 1)])
    head, *rest = ["|" + "".join(f" {text} |" if text else " |" for text in line) for line in lines]
    return "\n".join([head, "|" + "---|" * len(lines[0]), *rest]) + "\n"
