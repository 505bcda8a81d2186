"""Seconds from the start of `wids browse` to the first picture in a browser, printed as a table.

    python benchmarks/looking.py [REPEATS]

Four cases: the dataset of `wids demo`; a folder of 10,000 pictures, packed and then looked at;
remote shards without an index; and a remote dataset with one. The remote ones are on a server of
this machine, that states how many bytes it sent. Chromium runs before the clock starts.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import scenery
from loopback import Server
from tabs import Chromium, started

from wids.cli import demo_command

WIDS = (sys.executable, "-m", "wids")
NUM_PICTURES = 10_000


@contextmanager
def browsing(command: list[str]) -> Iterator[Any]:
    """Run a command; yield its process and the address that it prints first."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def first_picture(chromium: Any, named: str) -> tuple[float, float, float]:
    """Return the seconds until the address is printed, a picture is seen, the page is complete."""
    start_s = time.perf_counter()
    with browsing([*WIDS, "browse", named]) as address:
        printed_s = time.perf_counter() - start_s
        page = chromium.new_page(viewport={"width": 1280, "height": 800})
        page.goto(address)
        page.wait_for_selector("#grid img")
        seen_s = time.perf_counter() - start_s
        page.wait_for_selector("#grid[aria-busy=false]")
        complete_s = time.perf_counter() - start_s
        page.close()
    return printed_s, seen_s, complete_s


def write_folder(folder: Path) -> None:
    """Write class folders of pictures: drawn ones, each repeated under other names."""
    drawn = [scenery.sample(number, 320) for number in range(200)]
    for number in range(NUM_PICTURES):
        sample = drawn[number % len(drawn)]
        field = next(iter(sample))
        parent = folder / scenery.SEASONS[int(sample[".cls"])]
        parent.mkdir(parents=True, exist_ok=True)
        (parent / f"{number:05d}{field}").write_bytes(sample[field])


def main(repeats: int) -> None:
    """Print the table."""
    server = Server()
    with tempfile.TemporaryDirectory() as name, started() as program:
        os.environ["WIDS_CACHE"] = os.path.join(name, "cache")
        folder = Path(name)
        chromium = Chromium(program)
        chromium.new_page().close()
        cases = {"demo": demo_command.write_dataset(str(folder / "wids-demo"))}
        write_folder(folder / "photos")
        start_s = time.perf_counter()
        packing = [*WIDS, "pack", str(folder / "photos"), "-o", str(folder / "photos-packed")]
        subprocess.run(packing, check=True, capture_output=True)
        packed_s = time.perf_counter() - start_s
        cases["10,000 pictures, packed"] = str(folder / "photos-packed.json")
        for path in (folder / "photos-packed.json").parent.glob("photos-packed*"):
            if path.is_file():
                server.page(f"/{path.name}", path.read_bytes())
        tars = sorted(folder.glob("photos-packed*.tar"))
        pattern = f"{server.url}/photos-packed-{{000000..{len(tars) - 1:06d}}}.tar"
        cases["remote, no index"] = pattern if len(tars) > 1 else f"{server.url}/{tars[0].name}"
        cases["remote, with an index"] = f"{server.url}/photos-packed.json"
        print(f"packing {NUM_PICTURES:,} pictures: {packed_s:.2f} s\n")
        print(f"{'case':26} {'address':>8} {'picture':>8} {'page':>8}   {'bytes sent':>10}")
        for case, named in cases.items():
            times = []
            for _ in range(repeats):
                shutil.rmtree(os.environ["WIDS_CACHE"], ignore_errors=True)
                before = server.num_sent
                times.append(first_picture(chromium, named))
                sent = server.num_sent - before
            columns = [f"{statistics.median(part):7.2f} s"[:9] for part in zip(*times, strict=True)]
            print(f"{case:26} {' '.join(columns)}   {sent:>10,}")
        chromium.close()
    server.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
