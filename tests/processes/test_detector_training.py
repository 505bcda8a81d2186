"""The example that trains a detector finds the boxes of pictures that have none, one or several.

It starts as its users start it, by ``torchrun`` on two ranks with gloo on loopback.
"""

from __future__ import annotations

import re
from pathlib import Path

import jobs
import numpy as np
import pytest

import wids


@pytest.mark.long
def test_train_detector(tmp_path: Path) -> None:
    """Red and blue boxes on noise are found by two ranks."""
    random = np.random.default_rng(0)
    with wids.TarWriter(tmp_path / "boxes-0.tar") as writer:
        for number in range(480):
            pixels = random.integers(0, 60, (64, 64, 3), np.uint8)
            boxes, labels = [], []
            for corner in random.permutation(4)[: number % 4]:  # at most one in each quarter
                left, top = (random.integers(0, 12, 2) + 32 * np.array(divmod(corner, 2))).tolist()
                width, height = random.integers(10, 20, 2).tolist()
                label = int(random.integers(2))
                pixels[top : top + height, left : left + width, 2 * label] = 230
                boxes.append([left, top, left + width, top + height])
                labels.append(label)
            target = {"boxes": boxes, "labels": labels}
            writer.write({"__key__": f"{number:04d}", "png": pixels, "json": target})
    example = jobs.EXAMPLES / "train_detector.py"
    output = jobs.run(jobs.torchrun(2, example, tmp_path / "boxes-0.tar", "--field", ".png"))
    found = [int(share) for share in re.findall(r"epoch \d+: (\d+)% of boxes found", output)]
    assert len(found) == 12
    assert found[-1] > 80
