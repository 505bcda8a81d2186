"""The table of codecs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import wids
from wids.shards.fields.codecs import (
    BY_EXTENSION,
    CODECS,
    IMAGE_EXTENSIONS,
    find,
    media_extensions,
    media_kind,
    played_type,
)
from wids.shards.fields.encode import encode


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


def code_of(path: Path) -> str:
    """Return a module without its docstrings."""
    return re.sub(r'""".*?"""', "", path.read_text("utf-8"), flags=re.DOTALL)


def test_the_table_is_the_only_list() -> None:
    """No other module lists field types: each is in the table, with its encoder and media type."""
    package = Path(wids.__file__).parent
    lists = re.compile(r"""["'](?:jpeg|opus|webm|mkv|tiff|npz)["']""")
    with_lists = [p.name for p in package.rglob("*.py") if lists.search(code_of(p))]
    assert with_lists == ["codecs.py"]
    assert (media_kind(".a.FLAC"), media_kind(".mkv"), media_kind(".png")) == ("audio", "video", "")
    assert (played_type(".opus"), played_type(".mkv"), played_type(".txt")) == (
        "audio/ogg",
        None,
        None,
    )
    assert set(media_extensions("audio")) < set(BY_EXTENSION)


def test_users_are_told_each_type() -> None:
    """The docstring of `Decoder` names the types of the table, and no other."""
    text = (wids.Decoder.__doc__ or "").partition("Raises:")[0]
    named = {word for quoted in re.findall(r"``([a-z0-9 \n]+)``", text) for word in quoted.split()}
    assert set(BY_EXTENSION) <= named


@pytest.mark.parametrize("field", ["m4a", "mp4"])
def test_types_without_an_encoder_say_so(field: str) -> None:
    """The error lists the types that have one."""
    with pytest.raises(TypeError, match=r"expected bytes or text.*there are encoders for .*wav"):
        encode(field, 3)
