"""The table of codecs."""

from __future__ import annotations

from wids.shards.fields.codecs import BY_EXTENSION, CODECS, IMAGE_EXTENSIONS, find


def test_each_extension_has_one_codec() -> None:
    """Extensions are lower case, have no dot, and none is claimed twice."""
    extensions = [extension for codec in CODECS for extension in codec.extensions]

    assert sorted(extensions) == sorted(BY_EXTENSION)
    assert all(extension.isalnum() and extension.islower() for extension in extensions)


def test_images_are_marked() -> None:
    """The page and the preview ask the table which fields are images."""
    assert {"jpg", "png", "tiff"} < IMAGE_EXTENSIONS
    assert not IMAGE_EXTENSIONS & {"npy", "pkl", "txt"}


def test_the_longest_ending_wins() -> None:
    """An entry of None is an entry, and hides those for shorter endings."""
    table = {"seg.png": 2, "png": 3, "raw.png": None}

    assert find(".a.seg.png", table) == 2
    assert find(".a.png", table) == 3
    assert find(".raw.png", table) is None
    assert find(".png.zip", table) is None
