"""Sizes from the first bytes of pictures are those of the whole file, or an error."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from wids.shards.fields.picture_headers import HEAD_NBYTES, orientation_of, picture_facts

FORMATS = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"]


def encoded(
    kind: str, width: int = 40, height: int = 30, orientation: int = 1, **saved: Any
) -> bytes:
    noise = np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)
    if orientation > 1:
        exif = Image.Exif()
        exif[0x10F] = "a maker"
        exif[0x112] = orientation
        saved["exif"] = exif
    Image.fromarray(noise).save(file := io.BytesIO(), kind, **saved)
    return file.getvalue()


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("kind", FORMATS)
def test_facts_are_those_that_pillow_decodes(kind: str, orientation: int) -> None:
    """Turned upright by Pillow, a picture has the size that the orientation implies."""
    if orientation > 1 and kind in ("GIF", "BMP", "PPM"):
        pytest.skip("the format has no orientation")
    data = encoded(kind, orientation=orientation)
    assert picture_facts(data) == {"height": 30, "width": 40, "orientation": orientation}
    assert orientation_of(Image.open(io.BytesIO(data))) == orientation
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert upright is not None
    assert upright.size == ((40, 30) if orientation < 5 else (30, 40))


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("alpha", [False, True])
def test_all_kinds_of_webp(*, lossless: bool, alpha: bool) -> None:
    """Simple and extended files, lossy and not, and those of several frames."""
    picture = Image.new("RGBA" if alpha else "RGB", (1000, 3), (1, 2, 3, 4) if alpha else (1, 2, 3))
    picture.save(file := io.BytesIO(), "WEBP", lossless=lossless)
    assert picture_facts(file.getvalue()[:64]) == {"height": 3, "width": 1000, "orientation": 1}
    frames = [Image.new("RGB", (50, 60), (n, 0, 0)) for n in (0, 200)]
    frames[0].save(file := io.BytesIO(), "WEBP", save_all=True, append_images=frames[1:])
    assert picture_facts(file.getvalue()) == {"height": 60, "width": 50, "orientation": 1}


@pytest.mark.parametrize("orientation", [1, 8])
@pytest.mark.parametrize("kind", FORMATS)
def test_no_part_of_a_file_has_other_facts(kind: str, orientation: int) -> None:
    """However many first bytes there are, they suffice or are refused."""
    data = encoded(kind, 17, 13, orientation)
    whole, num_enough = picture_facts(data), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, about the end of a file
        for stop in range(len(data)):
            try:
                found = picture_facts(data[:stop])
            except Exception:  # noqa: BLE001, S112 - any error asks for more bytes
                continue
            num_enough += 1
            assert found == whole, stop
    is_last = (kind, orientation) == ("WEBP", 8)  # EXIF is at the end of such a file
    assert is_last or num_enough > 0


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_headers_are_errors(kind: str) -> None:
    """Random bytes behind the mark of a format are an error, or a size; nothing else is raised."""
    random = np.random.default_rng(1)
    start = encoded(kind)[:16]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(200):
            try:
                facts = picture_facts(start[: random.integers(4, 16)] + random.bytes(300))
            except Exception:  # noqa: BLE001, S112 - as intended
                continue
            assert min(facts.values()) >= 1


def test_long_headers_need_more_bytes() -> None:
    """A profile or a preview before the size is read in the second step, or with the whole."""
    data = encoded("JPEG", icc_profile=b"x" * 9000)
    with pytest.raises(Exception, match="Truncated"):
        picture_facts(data[: HEAD_NBYTES[0]])
    assert picture_facts(data[: HEAD_NBYTES[1]])["width"] == 40
