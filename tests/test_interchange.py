"""Tars that others write are read as ``webdataset`` streams them."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from conftest import need

from wids import ShardListDataset

Sample = dict[str, bytes | str]


def ours(shards: list[Path]) -> list[Sample]:
    with ShardListDataset(shards, transformations=None, raw="bytes") as dataset:
        return [
            {
                name.lower().removeprefix("."): value
                for name, value in sample.items()
                if name.startswith(".") or name == "__key__"
            }
            for sample in dataset
        ]


# webdataset leaves files open and warns about itself, so it runs in a process of its own.

STREAM = """
import pickle, sys, webdataset
stream = webdataset.WebDataset(sys.argv[1:], shardshuffle=False)
pickle.dump([dict(sample) for sample in stream], sys.stdout.buffer)
"""

WRITE = """
import sys, numpy, webdataset
pixels = numpy.arange(8 * 8 * 3, dtype=numpy.uint8).reshape(8, 8, 3)
with webdataset.ShardWriter(sys.argv[1], maxcount=17, verbose=0) as writer:
    for i in range(50):
        writer.write({
            "__key__": f"sub/{i:06d}", "png": pixels, "seg.npy": numpy.full(3, i),
            "json": {"i": i, "text": "é"}, "cls": i,
        })
"""


def run_webdataset(code: str, *arguments: str) -> bytes:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments], capture_output=True, check=True
    ).stdout


def theirs(shards: list[Path]) -> list[Sample]:
    # It lower-cases fields, leaves their dot out, and adds names of its own.
    samples = pickle.loads(run_webdataset(STREAM, *map(str, shards)))  # noqa: S301 - made here
    return [
        {k: v for k, v in sample.items() if not k.startswith("__") or k == "__key__"}
        for sample in samples
    ]


def test_gnu_tar_of_a_folder(tmp_path: Path) -> None:
    """Shards of the ``tar`` command: keys, fields and bytes."""
    need(shutil.which("tar"), "no tar command on this machine")
    folder = tmp_path / "in"
    (folder / "v1.0").mkdir(parents=True)
    for i in range(40):
        key = folder / "v1.0" / f"{'long' * (40 if i == 7 else 1)}é{i:04d}"
        Path(f"{key}.JPG").write_bytes(b"jpg %d" % i * i)
        Path(f"{key}.seg.png").write_bytes(b"png %d" % i)
        Path(f"{key}.cls").write_bytes(b"%d" % i)
    (folder / "v1.0" / "README").write_text("no field")
    shards = []
    for name in ("gnu", "posix"):
        shards.append(tmp_path / f"{name}.tar")
        subprocess.run(
            ["tar", "--sort=name", f"--format={name}", "-cf", shards[-1], "-C", folder, "v1.0"],
            check=True,
        )

    assert len(ours(shards)) == 80
    assert ours(shards) == theirs(shards)


def test_shards_of_webdatasets_writer(tmp_path: Path) -> None:
    """Shards of PyPI ``webdataset``'s ``ShardWriter``: keys, fields and bytes."""
    pixels = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    run_webdataset(WRITE, str(tmp_path / "w-%06d.tar"))
    shards = sorted(tmp_path.glob("*.tar"))

    assert len(shards) == 3
    assert len(ours(shards)) == 50
    assert ours(shards) == theirs(shards)
    with ShardListDataset(shards, transformations="numpy") as dataset:
        sample = dataset[31]
    np.testing.assert_array_equal(sample[".png"], pixels)
    assert (sample[".json"], sample[".cls"]) == ({"i": 31, "text": "é"}, 31)
    assert sample[".seg.npy"].tolist() == [31, 31, 31]
