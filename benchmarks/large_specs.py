"""Open specs of many shards: time, memory of a node of processes, pickles, bytes and requests.

    python benchmarks/large_specs.py [--shards 100000 1000000] [--processes 8] [--http]
        [--mix 50] [--wids FOLDER]

Each process opens the same spec and reads from every hundredth part of it where a sample is. Then
the memory of all of them is added up, as the system shares it out (PSS), without that of a process
that has only imported wids. ``--wids`` is a checkout of another version to compare with. ``--http``
serves the spec on loopback instead. The first process of a new cache folder is measured alone.
``--mix`` opens a list of so many specs, each of ``--shards``, instead of one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"


def write_spec(path: Path, num_shards: int, name: str = "train") -> None:
    """Write a document as ``wids create`` does, and let its time be believed."""
    start = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": name}
    with path.open("w") as file:
        file.write(json.dumps(start, indent=1)[:-2] + ',\n "shardlist": [\n')
        for number in range(num_shards):
            end = "\n" if number + 1 == num_shards else ",\n"
            file.write(
                f'  {{\n   "url": "train-{number:08d}.tar",\n   "nsamples": 1000,\n   "filesize": '
                f'104857600,\n   "sha256": "{number * 7 + 1:064x}"\n  }}{end}'
            )
        file.write(" ]\n}\n")
    os.utime(path, ns=(10**18, 10**18))


def queued_s() -> float:
    """Return how long this process has waited for a processor; 0 without /proc."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def resident_nbytes() -> int:
    """Return the memory of this process; 0 without /proc."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def worker(url: str | None, folder: str) -> None:
    """Open the spec, print what it took, and stay until the input ends."""
    import wids

    found: dict[str, Any] = {}
    keep = wids.ShardListDataset
    if url is not None:
        start_s, cpu_s, queue_s = time.perf_counter(), time.process_time(), queued_s()
        before_nbytes = resident_nbytes()
        dataset = wids.ShardListDataset(url.split("\n") if "\n" in url else url, cache_dir=folder)
        found["open_s"] = time.perf_counter() - start_s
        found["open_cpu_s"] = time.process_time() - cpu_s
        found["open_queue_s"] = queued_s() - queue_s
        found["grown_nbytes"] = resident_nbytes() - before_nbytes
        found["spec_nbytes"] = len(pickle.dumps(dataset.spec.shards))
        for part in range(100):
            number, _ = dataset.locate(len(dataset) * part // 100)
            if not dataset.spec.shards[number].url:
                raise ValueError(number)
        start_s = time.perf_counter()
        process = multiprocessing.get_context("spawn").Process(target=len, args=(dataset,))
        process.start()
        found["pickle_s"] = time.perf_counter() - start_s
        process.join()
        keep = dataset  # type: ignore[assignment]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found["peak_nbytes"] = peak * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps(found), flush=True)
    sys.stdin.read()
    del keep


def started(stack: ExitStack, url: str | None, folder: Path, code: str) -> subprocess.Popen[str]:
    """Start a worker, which ends with the stack."""
    name = "" if url is None else url
    command = [sys.executable, __file__, "--worker", name, str(folder)]
    environment = {**os.environ, "PYTHONPATH": code, "WIDS_CACHE": str(folder)}
    process = stack.enter_context(
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
    )
    stack.callback(lambda: process.stdin and process.stdin.close())
    return process


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait until a worker has opened its dataset."""
    if process.stdout is None:
        raise ValueError("expected the output of the worker")
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def pss_nbytes(process: subprocess.Popen[str], key: str) -> int:
    """Return the memory of a process, with its part of what it shares; 0 without /proc.

    With the key ``"Pss_Anon"`` it is that which is not the pages of files.
    """
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    lines = (line.split() for line in text.splitlines())
    return sum(int(line[1]) * 1024 for line in lines if line[0] == f"{key}:")


def node(
    url: str | None, folder: Path, code: str, count: int
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Open a spec in some processes at once; return what each took, and their memory."""
    with ExitStack() as stack:
        processes = [started(stack, url, folder, code) for _ in range(count)]
        found = [answer(process) for process in processes]
        keys = ("Pss", "Pss_Anon")
        return found, {key: sum(pss_nbytes(p, key) for p in processes) for key in keys}


def measured(place: Path, num_shards: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure a spec of a number of shards."""
    from loopback import Server

    path, folder = place / "train.json", place / "cache"
    write_spec(path, num_shards)
    result: dict[str, Any] = {"num_shards": num_shards, "json_nbytes": path.stat().st_size}
    with ExitStack() as stack:
        url, server = str(path), None
        if options.http:
            server = Server()
            stack.callback(server.close)
            url = server.page("/train.json", path.read_bytes())
        (first,), _ = node(url, folder, options.wids, 1)
        result["first"] = first
        if server is not None:
            result["first_requests"] = len(server.log)
            result["first_nbytes"] = server.num_sent
            del server.log[:]
        _, idle = node(None, folder, options.wids, options.processes)
        (alone,), _ = node(url, folder, options.wids, 1)
        if server is not None:
            result["requests"], result["nbytes"] = len(server.log), server.num_sent
        found, together = node(url, folder, options.wids, options.processes)
        result.update({key: alone[key] for key in alone if key.endswith("_s")})
        result["peak_nbytes"] = max(each["peak_nbytes"] for each in found)
        result["node_nbytes"] = together["Pss"] - idle["Pss"]
        result["own_nbytes"] = together["Pss_Anon"] - idle["Pss_Anon"]
    return result


def mixed(place: Path, num_shards: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure a list of specs, which one process opens, and then another."""
    paths = [place / str(number) / "train.json" for number in range(options.mix)]
    for number, path in enumerate(paths):
        path.parent.mkdir()
        write_spec(path, num_shards, f"train-{number}")
    urls, folder = "\n".join(map(str, paths)), place / "cache"
    (first,), _ = node(urls, folder, options.wids, 1)
    (again,), _ = node(urls, folder, options.wids, 1)
    print(
        f"{options.mix} specs of {num_shards:,} shards in a list: first open "
        f"{first['open_s']:.2f} s ({first['open_cpu_s']:.2f} s of processor); then "
        f"{again['open_s']:.2f} s ({again['open_cpu_s']:.2f} s of processor, "
        f"{again['open_queue_s']:.2f} s waiting for one), "
        f"peak {again['peak_nbytes'] / 1e6:,.0f} MB",
        flush=True,
    )
    return {"num_specs": options.mix, "num_shards": num_shards, "first": first, **again}


def row(result: dict[str, Any]) -> str:
    """Return a line of the table."""
    first = result["first"]
    text = (
        f"{result['num_shards']:>10,} shards: JSON {result['json_nbytes'] / 1e6:,.0f} MB; first "
        f"open {first['open_s']:.2f} s ({first['open_cpu_s']:.2f} s of processor), peak "
        f"{first['peak_nbytes'] / 1e6:,.0f} MB, {first['grown_nbytes'] / 1e6:,.0f} MB more than "
        f"before, shards as a pickle {first['spec_nbytes'] / 1e6:,.1f} MB; then "
        f"{result['open_s']:.3f} s ({result['open_cpu_s']:.3f} s of processor, "
        f"{result['open_queue_s']:.3f} s waiting for one), peak "
        f"{result['peak_nbytes'] / 1e6:,.0f} MB, all processes "
        f"{result['node_nbytes'] / 1e6:,.0f} MB ({result['own_nbytes'] / 1e6:,.0f} MB without the "
        f"pages of files), a worker's pickle {result['pickle_s']:.3f} s"
    )
    if "requests" in result:
        text += (
            f"; first {result['first_requests']} requests, {result['first_nbytes'] / 1e6:,.1f} MB, "
            f"then {result['requests']} requests, {result['nbytes'] / 1e6:,.1f} MB"
        )
    return text


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Print a line for each number of shards, and return what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--mix", type=int, default=0, help="specs in a list")
    parser.add_argument("--http", action="store_true", help="serve the spec on loopback")
    parser.add_argument("--wids", default=str(TESTS.parent), help="the checkout to measure")
    parser.add_argument("--folder", help="where to work (default: that of temporary files)")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(TESTS))
    results = []
    for num_shards in options.shards:
        with tempfile.TemporaryDirectory(dir=options.folder) as place:
            if options.mix:
                results.append(mixed(Path(place), num_shards, options))
                continue
            results.append(measured(Path(place), num_shards, options))
        print(row(results[-1]), flush=True)
    return results


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2] or None, sys.argv[3])
    else:
        main()
