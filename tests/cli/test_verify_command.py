"""``wids verify``: a spec and its shards → problems and a status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import run, write_bare_shards
from conftest import optional, write_tar
from recordings import film, sound

from wids.shards.fields.encode import encode


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of three shards without a spec."""
    return write_bare_shards(tmp_path)


def test_keys_in_several_shards(tmp_path: Path) -> None:
    """`wids create` writes the spec, and it and `wids verify` fail."""
    for name in "ab":
        write_tar(tmp_path / f"{name}.tar", [(f"{name}.txt", b""), ("x.txt", b"")])
    expected = '1 key occurs in several shards: "x" in a.tar and b.tar; a lookup finds the first'
    status, _, err = run("create", tmp_path, "-o", tmp_path / "a.json")
    assert (status, expected in err) == (1, True)
    status, out, _ = run("verify", tmp_path / "a.json")
    assert (status, expected in out) == (1, True)


def test_audio_and_video_that_do_not_decode(tmp_path: Path) -> None:
    """With --decode each one that is damaged or ends early is a problem, and no other."""
    optional("av")
    optional("soundfile")
    audio, moving = sound(), film(50)
    wav_bytes = encode("wav", audio)
    members = {
        "good.wav": wav_bytes,
        "good.flac": encode("flac", audio),
        "good.ogg": encode("ogg", audio),
        "good.mp4": moving,
        "cut1.wav": wav_bytes[: len(wav_bytes) // 2],
        "cut2.flac": encode("flac", audio)[:-9000],
        "cut3.mp4": moving[: len(moving) // 2],
        "other.mp3": b"no sound at all" * 100,
        "another.mkv": b"no film at all" * 100,
    }
    path = write_tar(tmp_path / "media.tar", list(members.items()))
    status, out, _ = run("verify", path, "--decode")
    found = {(line.split('"')[1], line.split('"')[3]) for line in out.splitlines() if '"' in line}
    bad = {tuple(name.split(".")) for name in members if not name.startswith("good")}
    assert (status, found) == (1, {(key, f".{field}") for key, field in bad})


def test_keys_of_damaged_samples_as_json(tmp_path: Path) -> None:
    """--json prints an object for each problem, with the keys of all its samples."""
    path = write_tar(tmp_path / "a.tar", [("a.cls", b""), ("b.cls", b"1"), ("c.cls", b"")])
    status, out, _ = run("verify", path, "--decode", "--json")
    (problem,) = map(json.loads, out.splitlines())
    assert (status, problem["shard"], problem["keys"]) == (1, str(path), ["a", "c"])
    assert 'field ".cls"' in problem["text"]


def test_verify(shards: Path) -> None:
    """Status 0 and nothing on standard output, or 1 and a line for each problem."""
    spec = shards / "train.json"
    run("create", shards, "-o", spec)
    assert run("verify", spec, "--decode") == (
        0,
        "",
        f"{spec}: 3 shards, 20 samples: no problems\n",
    )
    (shards / "train-000001.tar").unlink()

    status, out, _ = run("verify", spec)

    assert status == 1
    assert out == f"{shards}/train-000001.tar: cannot be read: No such file or directory\n"
