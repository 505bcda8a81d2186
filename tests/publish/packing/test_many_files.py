"""20,000 real files: packed, looked at, trained on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import wids
from wids import ShardListDataset

NUM_SAMPLES = 10_000


@pytest.mark.long
def test_twenty_thousand_files(tmp_path: Path) -> None:
    """Pictures in class folders, with captions, become a dataset that people see and train on."""
    for name in ("ant", "bee", "cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
    for number in range(NUM_SAMPLES):
        path = tmp_path / "photos" / ("ant", "bee", "cat", "dog")[number % 4] / f"{number:05d}.jpg"
        color = (number % 256, number // 256, 7 * number % 256)
        Image.new("RGB", (64, 64), color).save(path, quality=90)
        path.with_suffix(".txt").write_text(f"picture {number}")
    command = [sys.executable, "-m", "wids", "pack", "photos", "-o", "train"]
    command += ["--maxcount", "1500"]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert out.startswith("train.json: 10,000 samples, 7 shards, ")
    assert wids.verify_spec(tmp_path / "train.json", decode=True) == []
    with ShardListDataset(tmp_path / "train.json") as dataset:
        assert dataset.lengths == [1500] * 6 + [1000]
        html = dataset._repr_html_()
        assert "10,000" in html
        assert len(re.findall(r"<img", html)) >= 4
        sample = dataset.get_by_key("cat/04242")
        assert (sample[".txt"], sample[".cls"]) == ("picture 4242", 2)

    from torch.utils.data import DataLoader

    with ShardListDataset(tmp_path / "train.json", transformations="torch") as dataset:
        sampler = wids.DistributedChunkedSampler(dataset)
        loader = DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=2)
        seen = []
        for batch in loader:
            assert batch[".jpg"].shape[1:] == (3, 64, 64)
            numbers = [int(text.split()[1]) for text in batch[".txt"]]
            assert [number % 4 for number in numbers] == batch[".cls"].tolist()
            # Flat pictures: the first channel is the number, as far as JPEG is exact.
            reds = batch[".jpg"][:, 0].float().mean((1, 2)).tolist()
            assert all(abs(r - n % 256) < 4 for r, n in zip(reds, numbers, strict=True))
            seen += numbers
    assert sorted(seen) == list(range(NUM_SAMPLES))
