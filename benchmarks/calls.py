"""Which code one sample passes through: calls, modules and depth, counted by ``sys.setprofile``.

    python benchmarks/calls.py [--list]

A call of a function of wids counts, and so does a comprehension before Python 3.12. The depth
includes functions of other packages. A thread that is started meanwhile is not counted. With
``--list``, the modules of each row follow.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import wids

NUM_SHARDS, LENGTH = 3, 100


class Trace(NamedTuple):
    """What a call has passed through.

    Attributes:
        num_calls: Calls of functions of wids.
        modules: Their modules.
        depth: The deepest call, also of other packages.
    """

    num_calls: int
    modules: list[str]
    depth: int


def traced(function: Callable[[], object]) -> Trace:
    """Call a function, and return what it passes through."""
    num_calls = depth = deepest = 0
    modules: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal num_calls, depth, deepest
        if event == "call":
            depth += 1
            deepest = max(deepest, depth)
            module = frame.f_globals.get("__name__", "")
            if module.partition(".")[0] == "wids":
                num_calls += 1
                modules.add(module)
        elif event == "return":
            depth -= 1

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return Trace(num_calls, sorted(modules), deepest)


class _Handler(SimpleHTTPRequestHandler):
    """Serves a folder, with ranges."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        body = Path(self.translate_path(self.path)).read_bytes()
        start, stop = 0, len(body)
        wanted = self.headers.get("Range")
        if wanted:
            first, last = wanted.removeprefix("bytes=").split("-")
            start, stop = int(first), min(int(last or stop) + 1, stop)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("ETag", '"1"')
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(body)}")
        self.end_headers()
        self.wfile.write(body[start:stop])


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on loopback, and yield its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_shards(folder: Path) -> list[str]:
    """Write shards with a spec and a dataset index, and return their paths."""
    paths = [str(folder / f"{number}.tar") for number in range(NUM_SHARDS)]
    for number, path in enumerate(paths):
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for sample in range(LENGTH):
                member = tarfile.TarInfo(f"{number * LENGTH + sample:06d}.bin")
                member.size = 1000
                tar.addfile(member, BytesIO(bytes(1000)))
        os.utime(path, (0, 0))  # the index of a file that was just written is not stored
    wids.build_spec(paths, dataset_index=folder / "a.index").save(folder / "a.json")
    return paths


def measure(folder: Path) -> dict[str, Trace]:
    """Return what one sample passes through, by the name of each row."""
    paths = write_shards(folder)
    rows: dict[str, Trace] = {}

    def read(shards: Any, access: Any) -> wids.ShardListDataset:
        cache = folder / f"cache-{len(rows)}"
        return wids.ShardListDataset(shards, access=access, cache_dir=cache, transformations=None)

    with read(paths, "auto") as local:
        rows["open local shards"] = traced(lambda: read(paths, "auto").close())
        local[0]
        rows["local, warm"] = traced(lambda: local[50])
    with served(folder) as url:
        with read(f"{url}/a.json", "range") as ranged:
            rows["by range, cold"] = traced(lambda: ranged[0])
            for index in range(5):
                ranged[index]
            rows["by range, warm"] = traced(lambda: ranged[50])
        with read(f"{url}/a.json", "download") as fetched:
            rows["download"] = traced(lambda: fetched[0])
    return rows


def main(arguments: list[str] | None = None) -> dict[str, Trace]:
    """Print the table, and return it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="list the modules of each row")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        rows = measure(Path(name))
    print(f"{'':20} {'calls':>6} {'modules':>8} {'depth':>6}")
    for row, trace in rows.items():
        print(f"{row:20} {trace.num_calls:6,} {len(trace.modules):8} {trace.depth:6}")
        if options.list:
            print("    " + " ".join(module.removeprefix("wids.") for module in trace.modules))
    return rows


if __name__ == "__main__":
    main()
