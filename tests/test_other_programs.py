"""Datasets in the forms that other programs leave and expect: their names, members and tables.

lhotse and Hugging Face's builder write and read theirs here; for the others, which have many
requirements, files are made in the form that their readers and writers use.
"""

from __future__ import annotations

import gzip
import io
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from conftest import Member, raises, write_tar

from wids import MixedSampler, NotFoundError, ShardFormatError, ShardListDataset, load_spec


def write(path: Path, members: list[Member]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_tar(path, members)


def members(start: int, stop: int, fields: dict[str, Any], width: int = 9) -> list[Member]:
    """Return the members of samples with numbers as keys, which stand for ``{}`` in a field."""
    return [
        (f"{number:0{width}d}{field}", content(value).replace(b"{}", b"%d" % number))
        for number in range(start, stop)
        for field, value in fields.items()
    ]


def content(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        file = io.BytesIO()
        np.save(file, value)
        return file.getvalue()
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def raw(shards: Any) -> ShardListDataset:
    return ShardListDataset(shards, transformations=None, raw="bytes")


def test_open_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--train-data a::b --train-data-upsampling-factors 1::2``, and any format of pictures."""
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        pairs = members(
            10 * number, 10 * number + 10, {".jpg": b"j", ".txt": b"cc {}", ".json": {}}
        )
        write(tmp_path / "cc" / f"{number:05d}.tar", pairs)
    write(tmp_path / "laion" / "00000.tar", members(0, 10, {".webp": b"w", ".txt": b"laion {}"}))
    train_data, factors = "cc/{00000..00001}.tar::laion/00000.tar", "1::2"

    with raw(train_data).to_tuple(".jpg;.png;.jpeg;.webp", ".txt") as pairs:
        assert (len(pairs), pairs[13], pairs[24]) == (30, (b"j", b"cc 13"), (b"w", b"laion 4"))

    sources = train_data.split("::")
    urls = {name: [shard.url for shard in load_spec(name).shards] for name in sources}
    parts = [{"name": name, "shardlist": shards} for name, shards in urls.items()]
    with raw({"datasets": parts}) as dataset:
        shares = zip(sources, factors.split("::"), strict=True)
        weights = {name: len(urls[name]) * float(factor) for name, factor in shares}
        sampler = MixedSampler(dataset, weights, num_samples=100)
        assert Counter(dataset[index]["__dataset__"] for index in sampler) == dict.fromkeys(
            urls, 50
        )


def test_open_lm(tmp_path: Path) -> None:
    """Sequences of tokens as ``.json.gz``, one member for each sample."""
    tokens = gzip.compress(content(list(range(2049))))
    for number in range(2):
        write(tmp_path / f"{number:08d}.tar", members(0, 3, {".json.gz": tokens}))
    with ShardListDataset(f"{tmp_path}/{{00000000..00000001}}.tar") as dataset:
        assert dataset[5][".json.gz"] == list(range(2049))


def test_clap(tmp_path: Path) -> None:
    """Shards without leading zeros, in folders of splits: braces keep the order of numbers."""
    for split, count in (("train", 11), ("test", 1)):
        for number in range(count):
            fields = {".flac": b"fLaC", ".json": {"text": ["sound {}"], "tag": []}}
            path = tmp_path / "clotho" / split / f"{number}.tar"
            write(path, members(2 * number, 2 * number + 2, fields, width=1))
    with raw(f"{tmp_path}/clotho/train/{{0..10}}.tar") as dataset:
        assert list(dataset.keys()) == [str(number) for number in range(22)]
        assert json.loads(dataset[21][".json"])["text"] == ["sound 21"]
    with raw(f"{tmp_path}/**/*.tar") as dataset:
        assert len(dataset) == 24
    with raises(NotFoundError, "found 2 folders (test, train)", f"{tmp_path}/clotho/**/*.tar"):
        raw(tmp_path / "clotho")


def test_stable_audio(tmp_path: Path) -> None:
    """All tars below a folder, but for hidden ones; sounds in any format beside ``.json``."""
    for folder, extension in (("a", ".flac"), ("b/c", ".wav"), ("b", ".mp3")):
        fields = {extension: b"sound {}", ".json": {"prompt": "{}"}}
        write(tmp_path / folder / "000.tar", members(0, 2, fields))
    (tmp_path / "b" / "._000.tar").write_bytes(b"left by a desktop")
    with raw(f"{tmp_path}/**/*.tar").to_tuple(".flac;.wav;.mp3;.ogg;.opus", ".json") as dataset:
        assert [sound for sound, _ in dataset] == [b"sound 0", b"sound 1"] * 3


def test_whisperspeech(tmp_path: Path) -> None:
    """A folder for each kind of field, with tars of the same names, once they are unpacked."""
    for number in range(2):
        start, name = 3 * number, f"librilight-{number:06d}.tar"
        write(tmp_path / "audio" / name, members(start, start + 3, {".flac": b"fLaC {}"}))
        chunks = members(start, start + 3, {".vad.npy": np.full((2, 2), number)})
        write(tmp_path / "vad" / name, chunks)
        texts = members(start, start + 3, {".txt": b"text {}", ".spk": b"s"})
        # In another order, which merging streams would not allow.
        packed = gzip.compress(write(tmp_path / "txts" / name, texts[::-1]).read_bytes())
        (tmp_path / "txts" / f"{name}.gz").write_bytes(packed)
    audio, vad = raw(f"{tmp_path}/audio/*.tar"), ShardListDataset(f"{tmp_path}/vad/*.tar")
    with raises(ShardFormatError, "gzip data (a .tar.gz; unpack it with gunzip)"):
        raw(f"{tmp_path}/txts/*.tar.gz")
    dataset = audio.join(vad).join(raw(f"{tmp_path}/txts/*.tar"))
    sample = dataset[4]
    assert (sample[".flac"], sample[".txt"], sample[".spk"]) == (b"fLaC 4", b"text 4", b"s")
    assert sample[".vad.npy"].tolist() == [[1, 1]] * 2


def test_timm(tmp_path: Path) -> None:
    """Splits by braces or by ``::``; a picture in any format, and its class."""
    for number in range(3):
        fields = {".png" if number else ".jpg": b"p", ".cls": b"{}", ".json": {"label": 1}}
        name = f"imagenet-train-{number:04d}.tar"
        write(tmp_path / name, members(4 * number, 4 * number + 4, fields))
    splits = ["imagenet-train-{0000..0002}.tar"]
    splits.append("imagenet-train-{0000..0001}.tar::imagenet-train-0002.tar")
    for split in splits:
        dataset = ShardListDataset(split, base=tmp_path, transformations=None, raw="bytes")
        with dataset.to_tuple(".jpg;.png;.webp", ".cls") as pairs:
            assert [(picture, int(label)) for picture, label in pairs] == [
                (b"p", number) for number in range(12)
            ]


def lhotse_shar(folder: Path) -> None:
    """Write what `write_shar` does by the program itself."""
    lhotse, shar = pytest.importorskip("lhotse"), pytest.importorskip("lhotse.shar")
    soundfile = pytest.importorskip("soundfile")
    folder.mkdir()
    with shar.SharWriter(folder, fields={"recording": "flac", "emb": "numpy"}, shard_size=3) as out:
        for number in range(7):
            path = folder.parent / f"{number}.wav"
            soundfile.write(path, np.zeros(160), 16_000)
            recording = lhotse.Recording.from_file(path)
            text = lhotse.SupervisionSegment("s", recording.id, 0, 0.01, text=f"text {number}")
            cut = lhotse.MonoCut(f"cut-{number}", 0, 0.01, 0, [text], recording=recording)
            out.write(cut.attach_tensor("emb", np.full(4, number)))


def write_shar(folder: Path) -> None:
    """Write a tar for each field of three cuts, with ``.json`` of its own, and lines of cuts."""
    for number, start in enumerate(range(0, 7, 3)):
        ids = [f"cut-{n}" for n in range(start, min(start + 3, 7))]
        for field, extension, data in (("recording", "flac", b"fLaC"), ("emb", "npy", None)):
            parts: list[Member] = []
            for at, cut in enumerate(ids, start):
                value = content(np.full(4, at)) if data is None else data
                parts += [(f"{cut}.{extension}", value), (f"{cut}.json", b'{"id": "x"}')]
            write(folder / f"{field}.{number:06d}.tar", parts)
        lines = [
            json.dumps({"id": cut, "duration": 0.01, "supervisions": [{"text": f"text {at}"}]})
            for at, cut in enumerate(ids, start)
        ]
        text = "\n".join(lines).encode()
        (folder / f"cuts.{number:06d}.jsonl.gz").write_bytes(gzip.compress(text))


@pytest.mark.parametrize("make", [write_shar, pytest.param(lhotse_shar, marks=pytest.mark.long)])
def test_lhotse_shar(tmp_path: Path, make: Any) -> None:
    """Fields in tars of their own, and compressed lines of cuts with the same number."""
    make(tmp_path / "shar")
    recordings = raw(f"{tmp_path}/shar/recording.*.tar")
    embeddings = ShardListDataset(f"{tmp_path}/shar/emb.*.tar", fields=[".npy"])
    cuts = recordings.join("cuts.{number}.jsonl.gz", on="id", columns=["supervisions", "duration"])
    dataset = cuts.join(embeddings, prefix="emb")
    assert len(dataset) == 7
    sample = dataset[5]
    assert sample["__key__"] == "cut-5"
    assert sample[".flac"][:4] == b"fLaC"
    assert sample[".emb.npy"].tolist() == [5] * 4
    assert sample[".supervisions"][0]["text"] == "text 5"
    assert math.isclose(sample[".duration"], 0.01)


@pytest.mark.long
def test_hugging_faces_builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples that it streams, from shards by split."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    for split, count in (("train", 2), ("test", 1)):
        for number in range(count):
            fields = {".txt": b"{}", ".json": {"number": "{}"}, ".x.cls": b"{}"}
            name = f"{split}-{number:05d}-of-{count:05d}.tar"
            write(tmp_path / "data" / name, members(5 * number, 5 * number + 5, fields))
    pattern = f"{tmp_path}/data/train-*.tar"
    stream = datasets.load_dataset("webdataset", data_files=pattern, split="train", streaming=True)
    with ShardListDataset(pattern) as dataset:
        for theirs, ours in zip(stream, dataset, strict=True):
            assert theirs["__key__"] == ours["__key__"]
            assert (theirs["json"], theirs["txt"]) == (ours[".json"], ours[".txt"])
            assert theirs["x.cls"] == ours[".x.cls"]


def test_clip_retrieval(tmp_path: Path) -> None:
    """Embeddings as ``.npy`` and their keys as Parquet, in parts that are not the shards."""
    keys = [f"{number:09d}" for number in range(10)]
    for number in range(2):
        part = members(5 * number, 5 * number + 5, {".jpg": b"j", ".txt": b"{}"})
        write(tmp_path / f"{number:05d}.tar", part)
    (tmp_path / "out" / "metadata").mkdir(parents=True)
    (tmp_path / "out" / "img_emb").mkdir()
    for number, rows in enumerate((keys[:3], keys[3:9], keys[9:])):
        frame = pd.DataFrame({"image_path": rows, "caption": rows, "similarity": 0.5})
        frame.to_parquet(tmp_path / "out" / "metadata" / f"metadata_{number}.parquet")
        embeddings = np.array([[int(key)] * 4 for key in rows], np.float16)
        np.save(tmp_path / "out" / "img_emb" / f"img_emb_{number}.npy", embeddings)

    metadata = pq.read_table(tmp_path / "out" / "metadata")
    parts = sorted((tmp_path / "out" / "img_emb").glob("*.npy"))
    vectors = np.concatenate([np.load(part) for part in parts])
    by_key = dict(zip(metadata["image_path"].to_pylist(), vectors, strict=True))
    dataset = raw(f"{tmp_path}/*.tar").join(metadata, on="image_path", columns=["similarity"])
    sample = dataset.join(by_key, prefix="emb")[7]
    assert (sample[".jpg"], sample[".similarity"]) == (b"j", 0.5)
    assert sample[".emb"].tolist() == [7] * 4
    one = raw(f"{tmp_path}/00000.tar").join(
        tmp_path / "out" / "metadata" / "metadata_0.parquet", on="image_path", missing="skip"
    )
    assert list(one.keys()) == keys[:3]


def test_img2dataset(tmp_path: Path) -> None:
    """A Parquet file beside each shard, which also has the rows of failed downloads."""
    for number in range(2):
        rows = [f"{number:05d}{at:04d}" for at in range(5)]
        found = rows[:3] if number else rows
        parts = [(f"{key}{field}", b"x") for key in found for field in (".jpg", ".txt", ".json")]
        write(tmp_path / f"{number:05d}.tar", parts)
        status = ["success" if key in found else "failed_to_download" for key in rows]
        frame = pd.DataFrame({"key": rows, "caption": "c", "status": status, "width": range(5)})
        frame.to_parquet(tmp_path / f"{number:05d}.parquet")
    with raw(tmp_path) as dataset:
        joined = dataset.join("{shard}.parquet", on="key", columns=["width", "status"])
        assert [sample[".width"] for sample in joined] == [0, 1, 2, 3, 4, 0, 1, 2]
        assert {sample[".status"] for sample in joined} == {"success"}
