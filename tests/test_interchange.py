"""Tars that others write are read as ``webdataset`` streams them."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import need, raises, write_tar
from pages import ROOT
from PIL import Image

from wids import Decoder, NotFoundError, ShardListDataset
from wids.shards.fields import values as tenbin
from wids.shards.fields.codecs import BY_EXTENSION, IMAGE_EXTENSIONS

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

FIELDS = """
import sys, numpy, torch, webdataset
with webdataset.TarWriter(sys.argv[1], mtime=0) as writer:
    writer.write({
        "__key__": "a", "txt": "é", "text": "t", "transcript": "w", "cls": 3, "cls2": -4, "inx": 5,
        "id": 6, "index": 7, "json": [1, None], "jsn": {"a": 1.5}, "json.gz": {"b": 2},
        "npy": numpy.arange(6.0).reshape(2, 3), "npz": {"x": numpy.arange(3), "y": numpy.eye(2)},
        "ten": [numpy.arange(4, dtype="u1"), numpy.ones((2, 3), "f2")],
        "tb": numpy.eye(3, dtype="i2"), "mp": {"k": [1, b"x", "y"]}, "pth": torch.arange(3),
        "png": numpy.arange(48, dtype=numpy.uint8).reshape(4, 4, 3),
        "ppm": numpy.arange(48, dtype=numpy.uint8).reshape(4, 4, 3),
        "tiff": numpy.arange(16, dtype=numpy.uint8).reshape(4, 4),
    })
"""

DECODE = """
import pickle, sys, webdataset
for path in sys.argv[1:]:
    for sample in webdataset.WebDataset(path, shardshuffle=False).decode("rgb8"):
        pickle.dump(dict(sample), sys.stdout.buffer)
"""

PICTURES = """
import os, pickle, sys
from functools import partial
import numpy, webdataset, wids
from webdataset import autodecode
decoded, others = [], []
for path in sys.argv[1:]:
    data = open(path, "rb").read()
    decoded.append({})
    for spec in autodecode.imagespecs:
        decoded[-1][spec] = expected = webdataset.imagehandler(spec)("png", data)
        # The line of docs/from-webdataset.md.
        decode = wids.Decoder(decoders={"png": partial(webdataset.imagehandler(spec), "png")})
        found = decode({".png": data})[".png"]
        if type(found) is not type(expected) or not numpy.array_equal(found, expected):
            others.append((path, spec))
os.environ["WDS_DATA"] = "/data"
url = list(webdataset.SimpleShardList("${DATA}/a.tar"))[0]["url"]
names = set(autodecode.decoders), set(autodecode.IMAGE_EXTENSIONS)
pickle.dump((decoded, others, url, names), sys.stdout.buffer)
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


@pytest.mark.long
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
    # Names of metadata, and names like them (KEY-5).
    names = [
        "__meta__/info.json",
        "a.txt",
        "__meta__/x/b.txt",
        "__x.y__",
        "__a__.txt",
        "____/c.txt",
    ]
    names += ["___/d.txt", "b/__meta__/e.txt", "_f_/g.txt", "__h.txt", "__i__j/k.txt"]
    shards.append(write_tar(tmp_path / "meta.tar", [(name, name.encode()) for name in names]))

    assert len(ours(shards)) == 80 + 7
    assert ours(shards) == theirs(shards)


@pytest.mark.long
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


def check_equal(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        found, expected = found.numpy(), expected.numpy()
    assert type(found) is type(expected)
    np.testing.assert_equal(found, expected)
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype


@pytest.mark.long
def test_fields_of_webdatasets_writer(tmp_path: Path) -> None:
    """Every kind of field that its writer writes decodes to what its own decoder gives."""
    shard = tmp_path / "fields.tar"
    run_webdataset(FIELDS, str(shard))
    expected = pickle.loads(run_webdataset(DECODE, str(shard)))  # noqa: S301 - made here

    with ShardListDataset(shard, transformations="rgb8") as dataset:
        sample = dataset[0]

    fields = {name.removeprefix("."): v for name, v in sample.items() if name.startswith(".")}
    names = {name for name in expected if not name.startswith("__")}
    assert set(fields) == names
    assert len(names) == 20
    for name, value in fields.items():
        check_equal(value, expected[name])


MODES = ["L", "RGB", "RGBA", "P", "1", "LA", "CMYK", "YCbCr"]
DEEP = ["I;16", "I", "F"]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """A picture of each mode with what webdataset decodes it to, and what else it has to say."""
    folder = tmp_path_factory.mktemp("pictures")
    numbers = np.random.default_rng(0)
    pixels = numbers.integers(0, 256, (6, 7, 4), np.uint8)
    deep = numbers.integers(-300, 70_000, (6, 7))
    made = {mode: Image.fromarray(pixels).convert(mode) for mode in MODES}
    for mode, kind in zip(DEEP, (np.uint16, np.int32, np.float32), strict=True):
        made[mode] = Image.fromarray(deep.astype(kind))
    # Only TIFF has them all.
    formats = {mode: "TIFF" if mode in ("CMYK", "YCbCr", "I", "F") else "PNG" for mode in made}
    paths = [folder / f"{mode}.png" for mode in made]
    for path, (mode, image) in zip(paths, made.items(), strict=True):
        image.save(path, formats[mode])
    if not _reads_ycbcr(folder / "YCbCr.png"):
        del made["YCbCr"], formats["YCbCr"]
        paths = [folder / f"{mode}.png" for mode in made]
    found = pickle.loads(run_webdataset(PICTURES, *map(str, paths)))  # noqa: S301 - made here
    return dict(zip(made, zip(paths, found[0], strict=True), strict=True)), *found[1:]


def _reads_ycbcr(path: Path) -> bool:
    """Whether this Pillow reads the TIFF that it has written: 11.0 takes it for truncated."""
    try:
        with Image.open(path) as image:
            image.load()
    except OSError:
        return False
    return True


@pytest.fixture
def pictures(answers: tuple[Any, ...]) -> dict[str, tuple[Path, dict[str, Any]]]:
    """A picture of each mode, and what webdataset decodes it to."""
    found: dict[str, tuple[Path, dict[str, Any]]] = answers[0]
    return found


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_pictures_as_webdataset_decodes_them(
    mode: str, pictures: dict[str, tuple[Path, dict[str, Any]]]
) -> None:
    """Its specifications of pictures give the same values, types and shapes here."""
    need(mode in pictures, "a later Pillow")
    path, expected = pictures[mode]

    assert expected.keys() >= {"rgb8", "torchl", "pilrgba"}
    for specification, value in expected.items():
        ours = "torchrgb" if specification == "torch" else specification
        found = Decoder(ours)({".png": path.read_bytes()})[".png"]
        if specification.startswith("pil"):
            assert found.mode == value.mode
            check_equal(np.asarray(found), np.asarray(value))
        else:
            check_equal(found, value)


@pytest.mark.long
@pytest.mark.parametrize("mode", [*MODES, *DEEP])
def test_values_that_differ_from_webdatasets(
    mode: str, pictures: dict[str, tuple[Path, dict[str, Any]]]
) -> None:
    """They are the ones that docs/from-webdataset.md names: "torch", and more than 8 bits."""
    need(mode in pictures, "a later Pillow")
    need(mode != "I;16" or hasattr(torch, "uint16"), "torch 2.3 or later")
    path, expected = pictures[mode]
    differ = set()
    for specification, value in expected.items():
        found = np.asarray(Decoder(specification)({".png": path.read_bytes()})[".png"])
        if found.dtype != np.asarray(value).dtype or not np.array_equal(found, value):
            differ.add(specification)
    assert differ == (set(expected) if mode in DEEP else {"torch"})


def test_the_line_that_gives_webdatasets_values(answers: tuple[Any, ...]) -> None:
    """Its own function as a decoder has its values, for pictures of any mode."""
    assert answers[1] == []


def test_fields_that_one_of_both_decodes(answers: tuple[Any, ...]) -> None:
    """The page names the fields that only one of both decodes, and no other."""
    own = {name for name, codec in BY_EXTENSION.items() if codec.kind in ("plain", "pickle")}
    values, images = answers[3]
    page = (ROOT / "docs/from-webdataset.md").read_text("utf-8")
    (line,) = [line for line in page.splitlines() if "stay bytes there" in line]
    assert set(re.findall(r"`\.(\w+)`", line.split("|")[1])) == own - values
    assert values <= own
    assert images > IMAGE_EXTENSIONS
    (line,) = [line for line in page.splitlines() if "stay bytes here" in line]
    assert set(re.findall(r"`\.(\w+)`", line.split("|")[1])) <= images - IMAGE_EXTENSIONS


def test_variables_of_webdataset(
    answers: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``${DATA}`` is ``$WDS_DATA`` there; here the program expands it, as the page says."""
    assert answers[2] == "/data/a.tar"
    write_tar(tmp_path / "a.tar", [("a.txt", b"")])
    monkeypatch.setenv("WDS_DATA", str(tmp_path))
    with raises(NotFoundError, "${DATA}"):
        ShardListDataset("${DATA}/a.tar")
    with ShardListDataset(os.path.expandvars("${WDS_DATA}/a.tar")) as dataset:
        assert len(dataset) == 1


@pytest.mark.long
def test_tenbin_is_the_format_of_webdataset() -> None:
    """The same arrays give the same bytes."""
    code = """
import sys, numpy, webdataset.tenbin
arrays = [numpy.arange(6.0).reshape(2, 3), numpy.zeros((0, 2), "u1"), numpy.array(3, "i8")]
sys.stdout.buffer.write(webdataset.tenbin.encode_buffer(arrays))
"""
    arrays = [np.arange(6.0).reshape(2, 3), np.zeros((0, 2), "u1"), np.array(3, "i8")]

    assert tenbin.dumps(arrays) == run_webdataset(code)
