"""One report: this library beside all others that people use for the same, in one run.

    python benchmarks/report.py --environments DIR [--rounds 3] [--write]
    python benchmarks/report.py --quick [--old OLD_PYTHON]

The first installs each library in an environment of its own, measures, and with ``--write``
replaces the tables and plots of docs/performance.md, and README's table. The second is a smoke test
of a minute, of what is installed in this environment. ``--results FILE`` shows what was measured
before.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import network
from network_site import FULL_DATA, TOY_DATA, Client, Site
from reporting import plots, tables
from reporting.environments import CONTESTANTS, ROOT, interpreters
from reporting.runs import FULL, QUICK, Results, Run, show

PAGE = ROOT / "docs" / "performance.md"
FOLDER = ROOT / "docs" / "performance"
README = ROOT / "README.md"
BEGIN, END = "<!-- begin of the generated part -->", "<!-- end of the generated part -->"


def machine() -> str:
    """Return what the machine is."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    nbytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    kernel = ".".join(platform.release().split(".")[:2])
    return f"{model}, {os.cpu_count()} cores, {nbytes / 1e9:.0f} GB of memory, Linux {kernel}"


def commit() -> str:
    """Return the last commit that changed the library."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%h", "--", "wids"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def measure(options: argparse.Namespace, folder: Path) -> Results:
    """Measure everything in a folder."""
    sizes = QUICK if options.quick else FULL
    wanted = [each for each in CONTESTANTS if not options.only or each.name in options.only]
    names = list(dict.fromkeys(contestant.environment for contestant in wanted))
    pythons, missing = interpreters(options.environments, options.old, names)
    chosen = [contestant for contestant in wanted if contestant.environment in pythons]
    run = Run(chosen, pythons, folder, sizes)
    loads: list[float] = []
    run.results.about = {
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "priority": f"niceness {os.nice(0)}",
    }

    for contestant in wanted:
        if contestant.environment in missing:
            reason = missing[contestant.environment]
            run.results.reasons.setdefault("install", {})[contestant.name] = reason

    def keep(results: Results) -> None:
        loads.append(os.getloadavg()[0])
        results.about["load"] = f"{min(loads):.1f} to {max(loads):.1f}"
        results.about["is_shared"] = max(loads) > (os.cpu_count() or 1) + 1
        if options.keep:
            options.keep.write_text(as_json(results), encoding="utf-8")

    try:
        run.prepare()
        nbytes = sum(Path(shard).stat().st_size for shard in sizes.remote.shards(run.tars))
        run.results.about["remote_best_s"] = nbytes / sizes.rate_nbytes
        run.measure(options.rounds, options.rows, keep)
        run.results.network = networks(options, folder)
    finally:
        run.close()
    return run.results


def networks(options: argparse.Namespace, folder: Path) -> network.Results:
    """Measure the rows of remote reading, where the programs for it are installed."""
    names = [row.name for row in network.ROWS]
    if options.rows:
        names = [name for name in names if name in options.rows]
    if not names or not all(map(shutil.which, ("nginx", "curl"))):
        return {}
    site = Site(folder / "network", TOY_DATA if options.quick else FULL_DATA)
    site.write()
    return network.measure_rows([Client(tables.OWN, site)], names, options.rounds)


def as_json(results: Results) -> str:
    """Return all that was measured as JSON."""
    return json.dumps(asdict(results), indent=1, ensure_ascii=False) + "\n"


def updated(earlier: Results, later: Results, rows: list[str]) -> Results:
    """Return earlier results with some rows that were measured again."""
    when = f"{later.about['date']} of commit `{later.about['commit']}`"
    again = {**earlier.about.get("again", {}), **dict.fromkeys(rows, when)}
    return Results(
        values={**_without(rows, earlier.values), **later.values},
        reasons={**_without(rows, earlier.reasons), **later.reasons},
        versions={**earlier.versions, **later.versions},
        about={**earlier.about, "again": again},
        network={**earlier.network, **later.network},
    )


def _without(rows: list[str], table: dict[str, Any]) -> dict[str, Any]:
    return {row: found for row, found in table.items() if row not in rows}


def save(results: Results) -> None:
    """Replace the generated part of the page, README's table, the numbers and the plots."""
    FOLDER.mkdir(exist_ok=True)
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    PAGE.write_text(
        f"{before}{BEGIN}\n\n{tables.report(results)}\n\n{END}{after}", encoding="utf-8"
    )
    (FOLDER / "results.json").write_text(as_json(results), encoding="utf-8")
    readme = README.read_text(encoding="utf-8")
    before, _, after = readme.partition("\n| | wids | wids 0.1.11 ")
    after = after.partition("\n\n")[2]
    README.write_text(f"{before}\n{tables.front_table(results)}\n{after}", encoding="utf-8")
    plots.write(results, FOLDER)


def main(arguments: list[str] | None = None) -> Results:
    """Measure, print the report, and write it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--environments", type=Path, help="folder of the environments to use")
    parser.add_argument("--old", help="without it, the interpreter that has wids 0.1.11")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="names of libraries")
    parser.add_argument("--rows", nargs="+", default=[], help="names of rows")
    parser.add_argument("--data", type=Path, help="folder for the data, on the disk to measure")
    parser.add_argument("--keep", type=Path, help="file for the numbers, written after each row")
    parser.add_argument("--write", action="store_true", help="replace the tables and the plots")
    parser.add_argument(
        "--results", type=Path, help="show these, of which only the named rows are measured again"
    )
    options = parser.parse_args(arguments)
    if options.rows or not options.results:
        with tempfile.TemporaryDirectory(dir=options.data) as folder:
            results = measure(options, Path(folder))
    if options.results:
        earlier = Results(**json.loads(options.results.read_text(encoding="utf-8")))
        results = updated(earlier, results, options.rows) if options.rows else earlier
    if options.write:
        save(results)
        show(f"wrote {PAGE}")
    print(tables.report(results))
    return results


if __name__ == "__main__":
    sys.exit(main() is None)
