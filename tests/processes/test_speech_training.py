"""The example that trains on sounds learns to tell them apart, with little padding.

It starts as its users start it, by ``torchrun`` on two ranks with gloo on loopback.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import jobs
import numpy as np
import pytest
from conftest import optional
from recordings import RATE

import wids
from wids.shards.fields.encode import encode

TONES = (300, 600, 1200)


@pytest.mark.long
def test_train_speech(tmp_path: Path) -> None:
    """A packed folder of tones of one to four seconds is learned by two ranks."""
    for package in ("soundfile", "soxr", "pyarrow"):
        optional(package)
    random = np.random.default_rng(0)
    for number in range(120):
        label, length = number % len(TONES), random.integers(RATE, 4 * RATE)
        tone = 0.5 * np.sin(2 * np.pi * TONES[label] * np.arange(length) / RATE)
        noisy = (tone + random.normal(0, 0.05, length)).clip(-1, 1).astype(np.float32)
        folder = tmp_path / "words" / f"tone{label}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.flac").write_bytes(encode("flac", (noisy, RATE)))
        (folder / f"{number}.json").write_text(json.dumps({"duration": length / RATE}))
    wids.pack_folder(str(tmp_path / "words"), str(tmp_path / "shards" / "words"))
    example = jobs.EXAMPLES / "train_speech.py"
    output = jobs.run(jobs.torchrun(2, example, tmp_path / "shards" / "words.json"))
    epochs = re.findall(r"epoch \d+: (\d+)% right, (\d+)% padding", output)
    assert len(epochs) == 8
    assert int(epochs[-1][0]) > 90
    # With batches of any sounds, a quarter to a third would be padding.
    assert all(int(padding) <= 20 for _, padding in epochs)
