"""Clips a second: this library beside PyAV and torchcodec, which are called directly.

    python benchmarks/clips.py [--rounds 20] [--films 4] [--seconds 10]

ffmpeg makes the films: H.264 in mp4, of two sizes, with a frame to begin at every 12 or 250 frames
(the default of its encoder). This library reads them as samples of a tar, and the others as files.
All return the same frames, by one thread. They take turns in this process, so that other load
affects them alike. A ratio is this library's time by the other's: the median of all turns, with the
quartiles. torchcodec is left out where it cannot be loaded. The last column has how many values of
a clip differ from this library's, and by how much at most.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import wids

NUM_FRAMES, STRIDE, RATE = 16, 2, 25
KINDS = [(320, 240, 12), (320, 240, 250), (640, 480, 12), (640, 480, 250)]
"""Width, height, and the distance of the frames at which decoding can begin."""

Clip = Callable[[int], torch.Tensor]


def write_films(folder: Path, kind: tuple[int, int, int], count: int, seconds: float) -> list[Path]:
    """Write films that differ, and a tar of them; return their paths."""
    width, height, distance = kind
    paths = []
    for number in range(count):
        path = folder / f"{number:04d}.mp4"
        source = f"testsrc2=size={width}x{height}:rate={RATE}:duration={seconds}"
        grain = f"noise=all_seed={number}:alls=12:allf=t"
        command = ["ffmpeg", "-loglevel", "error", "-f", "lavfi", "-i", source, "-vf", grain]
        command += ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-g", str(distance), str(path)]
        subprocess.run(command, check=True, timeout=600)
        paths.append(path)
    with tarfile.open(folder / "films.tar", "w") as archive:
        for path in paths:
            archive.add(path, path.name)
    return paths


def clips_of_wids(paths: list[Path], at_s: float) -> Clip:
    decode = wids.Decoder(video=wids.Clips(NUM_FRAMES, STRIDE, at=at_s))
    dataset = wids.ShardListDataset(paths[0].parent / "films.tar", transformations=decode)
    return lambda number: dataset[number][".mp4"]


def clips_of_pyav(paths: list[Path], at_s: float) -> Clip:
    import av
    import numpy as np

    def clip(number: int) -> torch.Tensor:
        first = round(at_s * RATE)
        wanted = range(first, first + NUM_FRAMES * STRIDE, STRIDE)
        pixels = []
        with av.open(str(paths[number])) as container:
            stream = container.streams.video[0]
            assert stream.time_base is not None
            stream.codec_context.thread_count = 1
            container.seek(round(at_s / stream.time_base), stream=stream)
            for frame in container.decode(stream):
                if round(frame.time * RATE) in wanted:
                    pixels.append(frame.to_ndarray(format="rgb24"))
                    if len(pixels) == NUM_FRAMES:
                        break
        return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)

    return clip


def clips_of_torchcodec(paths: list[Path], at_s: float) -> Clip:
    from torchcodec.decoders import VideoDecoder

    def clip(number: int) -> torch.Tensor:
        # The index of the mp4 is believed, as it is by the others. All frames of the range are
        # decoded: with a stride or a list of numbers it sought more often, and took half as long
        # again where decoding can begin at every 12th frame.
        decoder = VideoDecoder(paths[number], num_ffmpeg_threads=1, seek_mode="approximate")
        first = round(at_s * RATE)
        frames: Any = decoder.get_frames_in_range(first, first + (NUM_FRAMES - 1) * STRIDE + 1)
        return frames.data[::STRIDE]

    return clip


PEERS: dict[str, Callable[[list[Path], float], Clip]] = {
    "PyAV": clips_of_pyav,
    "torchcodec": clips_of_torchcodec,
}


def measure(ways: dict[str, Clip], count: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return for each way its seconds of the processor and of the clock for a clip, by turns."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(rounds):
        names = list(ways) if turn % 2 else list(ways)[::-1]
        for name in names:
            processor_s, clock_s = time.process_time(), time.perf_counter()
            for number in range(count):
                ways[name](number)
            taken_s = time.process_time() - processor_s, time.perf_counter() - clock_s
            found[name].append((taken_s[0] / count, taken_s[1] / count))
    return found


def ratios(own: list[tuple[float, float]], other: list[tuple[float, float]], column: int) -> str:
    """Return the median of the ratios of neighbours, and their quartiles."""
    values = [a[column] / b[column] for a, b in zip(own, other, strict=True)]
    first, middle, third = statistics.quantiles(values, n=4)
    return f"{middle:.2f} ({first:.2f} to {third:.2f})"


def peers() -> dict[str, Callable[[list[Path], float], Clip]]:
    """Return the other libraries that can be loaded here."""
    found = {}
    for name, make in PEERS.items():
        try:
            make([], 0.0)
        except (ImportError, OSError, RuntimeError) as error:
            print(f"without {name}: {str(error).strip().splitlines()[0]}")
            continue
        found[name] = make
    return found


def main(arguments: list[str] | None = None) -> dict[str, dict[str, int]]:
    """Print a row for each kind of film; return how many values of a clip differ, by library."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--films", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args(arguments)
    others = peers()
    differing: dict[str, dict[str, int]] = {}
    print(f"{'films':<14}{'clips by':<12}{'per s':>6}  {'by processor':<22}{'by clock':<22}differ")
    for kind in KINDS:
        label = "{}x{}, {}".format(*kind)
        with tempfile.TemporaryDirectory() as folder:
            paths = write_films(Path(folder), kind, options.films, options.seconds)
            at_s = round(0.4 * options.seconds * RATE) / RATE
            ways = {"wids": clips_of_wids(paths, at_s)}
            ways |= {name: make(paths, at_s) for name, make in others.items()}
            clips = {name: way(0).short() for name, way in ways.items()}
            found = measure(ways, options.films, options.rounds)
        differing[label] = {}
        for name, times in found.items():
            speed = 1 / statistics.median(clock_s for _, clock_s in times)
            both = [ratios(found["wids"], times, column) for column in (0, 1)]
            distance = (clips[name] - clips["wids"]).abs()
            differing[label][name] = count = int(distance.count_nonzero())
            print(f"{label:<14}{name:<12}{speed:>6.1f}  {both[0]:<22}{both[1]:<22}", end="")
            print(f"{count} by {int(distance.max())}")
    return differing


if __name__ == "__main__":
    main()
