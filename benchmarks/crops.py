"""Random crops of audio: this library beside soundfile, which a program calls for files.

    python benchmarks/crops.py [--rounds 30] [--files 100]

Each crop is 2 s of a wav of 10 s (16 kHz, one channel, 16 bits), as a tensor of float32. This
library reads samples of a tar with a dataset index, whose checksums it compares; soundfile seeks in
a file. They take turns in this process, so that other load affects them alike. A ratio is this
library's time by soundfile's: the median of all turns, with the quartiles. ``wids[fast]`` has the
checksums of zlib-ng or isal, and ``wids`` those of zlib.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from clips import measure, ratios

import wids
from wids.cli.main import main as run_command
from wids.storage import files

RATE, LENGTH_S, CROP_S = 16_000, 10, 2.0

Crop = Callable[[int], torch.Tensor]


def write_files(folder: Path, count: int) -> Path:
    """Write wavs of noise, and a tar of them with a spec and a dataset index; return the spec."""
    from wids.shards.fields.encode import encode

    noise = np.random.default_rng(0)
    with wids.TarWriter(folder / "crops-0.tar") as writer:
        for number in range(count):
            samples = noise.integers(-9999, 9999, (1, RATE * LENGTH_S), np.int16)
            data = encode(".wav", (samples, RATE))
            (folder / f"{number}.wav").write_bytes(data)
            writer.write({"__key__": f"{number}", "wav": data})
    spec = folder / "crops.json"
    assert run_command(["create", str(folder / "crops-0.tar"), "-o", str(spec)]) == 0
    return spec


def crops_of_wids(spec: Path, stack: ExitStack, **options: Any) -> Crop:
    """Return crops of this library; without ``wids[fast]`` if that is not importable now."""
    decode = wids.Decoder(audio=wids.Audio(start_s="random", duration_s=CROP_S))
    dataset = stack.enter_context(wids.ShardListDataset(spec, **options)).map(decode, seed=0)
    dataset[0]  # chooses the function that computes checksums
    return lambda number: dataset[number][".wav"][0]


def crops_of_soundfile(folder: Path) -> Crop:
    import soundfile

    starts = np.random.default_rng(0)

    def crop(number: int) -> torch.Tensor:
        with soundfile.SoundFile(folder / f"{number}.wav") as file:
            wanted = round(CROP_S * file.samplerate)
            file.seek(int(starts.integers(max(1, file.frames - wanted + 1))))
            samples = file.read(wanted, dtype="float32", always_2d=True)
        return torch.from_numpy(samples.T)

    return crop


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Print a row for each way; return the ratios to soundfile, by time of the processor."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--files", type=int, default=100)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        spec = write_files(Path(folder), options.files)
        ways = {"soundfile": crops_of_soundfile(Path(folder))}
        if files.fastest_crc32.__wrapped__() is not files.zlib.crc32:
            ways["wids[fast]"] = crops_of_wids(spec, stack)
        with patch.object(files, "_PACKAGES", ()):
            files.fastest_crc32.cache_clear()
            ways["wids"] = crops_of_wids(spec, stack)
        files.fastest_crc32.cache_clear()
        ways['verify="never"'] = crops_of_wids(spec, stack, verify="never")
        found = measure(ways, options.files, options.rounds)
    print(f"{'crops by':<16}{'µs':>6}  {'by processor':<22}by clock")
    for name, times in found.items():
        columns = [ratios(times, found["soundfile"], column) for column in (0, 1)]
        each = 1e6 * statistics.median(processor_s for processor_s, _ in times)
        print(f"{name:<16}{each:>6.0f}  {columns[0]:<22}{columns[1]}")
    own = found["soundfile"]
    return {
        name: statistics.median(a[0] / b[0] for a, b in zip(times, own, strict=True))
        for name, times in found.items()
    }


if __name__ == "__main__":
    main()
