"""Folders of audio and video are packed as folders of pictures are."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from recordings import film, wav

import wids


def test_sounds_and_their_texts(tmp_path: Path) -> None:
    """A folder of wav and txt becomes samples of both, and class folders become .cls."""
    for name in ("cat", "dog"):
        (tmp_path / "sounds" / name).mkdir(parents=True)
        for number in range(2):
            (tmp_path / "sounds" / name / f"{number}.wav").write_bytes(wav())
            (tmp_path / "sounds" / name / f"{number}.txt").write_text(f"a {name}")
    wids.pack_folder(str(tmp_path / "sounds"), str(tmp_path / "out" / "sounds"))
    spec = tmp_path / "out" / "sounds.json"
    with wids.ShardListDataset(spec, transformations=wids.Decoder(audio="torch")) as dataset:
        assert len(dataset) == 4
        found = sorted((sample[".txt"], sample[".cls"]) for sample in dataset)
        assert found == [("a cat", 0)] * 2 + [("a dog", 1)] * 2
        assert {tuple(sample[".wav"][0].shape) for sample in dataset} == {(2, 8000)}


def test_films_and_their_facts(tmp_path: Path) -> None:
    """A folder of mp4 and json becomes samples of both, whose video is read and cut into clips."""
    (tmp_path / "films").mkdir()
    for number in range(3):
        (tmp_path / "films" / f"{number}.mp4").write_bytes(film(10 + number))
        (tmp_path / "films" / f"{number}.json").write_text(json.dumps({"frames": 10 + number}))
    wids.pack_folder(str(tmp_path / "films"), str(tmp_path / "out" / "films"))
    spec = tmp_path / "out" / "films.json"
    with wids.ShardListDataset(spec, transformations=wids.Decoder(video="reader")) as dataset:
        found = sorted((len(sample[".mp4"]), sample[".json"]["frames"]) for sample in dataset)
        assert found == [(10, 10), (11, 11), (12, 12)]
    decode = wids.Decoder(video=wids.Clips(num_frames=4, stride=2, at=0.2))
    with wids.ShardListDataset(spec, transformations=decode) as dataset:
        for sample in dataset:
            data = (tmp_path / "films" / f"{sample['__key__']}.mp4").read_bytes()
            with wids.VideoReader(data) as reader:
                last = sample[".json"]["frames"] - 1
                expected = reader.frames([min(5 + 2 * number, last) for number in range(4)])
            assert torch.equal(sample[".mp4"], expected)
