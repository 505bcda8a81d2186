"""Values, samples and tables → text for a terminal."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from conftest import optional
from PIL import Image
from recordings import copied, film, numbered_film, wav

from wids.look.html import field_html
from wids.look.text import sample_text, share_text, table, value_text
from wids.shards.fields.encode import encode
from wids.storage.sizes import count_text, nbytes_text


def picture() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (64, 48)).save(stream, "JPEG")
    return stream.getvalue()


def test_orientation_of_pictures() -> None:
    """One in EXIF that is not applied is stated; an upright picture, and damaged EXIF, are not."""
    for orientation, remark in ((6, "RGB, EXIF orientation 6 (not applied), "), (1, "RGB, ")):
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.new("RGB", (64, 48)).save(stream := io.BytesIO(), "JPEG", exif=exif)
        assert value_text(".jpg", stream.getvalue()).startswith(f"JPEG 64 x 48 {remark}")
        assert remark in field_html(".jpg", stream.getvalue())
    Image.new("RGB", (64, 48)).save(stream := io.BytesIO(), "JPEG", exif=b"Exif\0\0damaged")
    assert value_text(".jpg", stream.getvalue()).startswith("JPEG 64 x 48 RGB, ")


def test_newlines_at_the_end_of_text_on_cards() -> None:
    """Most files of text end with one; a card leaves it out, and keeps those before."""
    assert value_text(".txt", b"two\nlines\r\n", is_brief=True) == "two\\nlines"
    assert value_text(".txt", b"a line\n") == "a line\\n"


@pytest.mark.parametrize(
    ("field", "data", "expected"),
    [
        (".txt", "a caption ü".encode(), "a caption ü"),
        (".txt", b"two\nlines\x1b[31m", "two\\nlines\\x1b[31m"),
        (".cls", b"7", "7"),
        (".json", b'{"a": [1, "x"]}', '{"a": [1, "x"]}, 15 B'),
        (".seg.npy", encode(".npy", np.zeros((2, 3), np.float32)), "ndarray (2, 3) float32, 152 B"),
        (".npz", encode(".npz", {"x": np.arange(3)}), "x: ndarray (3,) int64, 260 B"),
        (
            ".ten",
            encode(".ten", [np.arange(3), np.eye(2)]),
            "ndarray (3,) int64, ndarray (2, 2) float64, 320 B",
        ),
        (".bin", b"\x00abc", "b'\\x00abc', 4 B"),
        (".txt.gz", encode(".txt.gz", "hello"), "hello"),
        (".cls", b"cat", "3 B that cannot be decoded: field"),
        (".png", b"?", "1 B that cannot be decoded: UnidentifiedImageError"),
        (".pkl", b"x", '1 B that cannot be decoded: field ".pkl": expected data, found a pickle'),
        ("__key__", "k\x07", "k\\x07"),
    ],
)
def test_values_in_a_line(field: str, data: bytes, expected: str) -> None:
    """A value is described with its size and without control characters."""
    found = value_text(field, data)
    assert found.startswith(expected)
    assert found.isprintable()


def test_pictures_are_described() -> None:
    """A picture is described by its actual format and size, whatever its extension is."""
    data = picture()
    assert value_text(".jpg", data) == f"JPEG 64 x 48 RGB, {len(data)} B"
    assert value_text(".png", data) == f"JPEG 64 x 48 RGB, {len(data)} B"


def test_sounds_and_films_are_described() -> None:
    """A sound has length, rate and channels; a film length, size and rate, by their headers."""
    optional("soundfile")
    optional("av")
    assert value_text(".wav", wav()) == "1.0 s, 8,000 Hz, 2 channels, 32.0 kB"
    text = value_text(".mp4", film(50))
    assert text.startswith("2.0 s, 64 x 48, 25 frames per second, ")
    assert "1.0 s, 8,000 Hz" in field_html(".wav", wav())


def test_films_are_described_by_their_frames() -> None:
    """The length is that of the frames, also where a header states another one, or none."""
    optional("av")
    later = copied(numbered_film("mp4", "mpeg4"), "matroska", shift_s=10)
    piped = numbered_film("avi", "mpeg4", is_piped=True)
    live = numbered_film("webm", "libvpx", is_piped=True)
    for field, data in ((".mkv", later), (".avi", piped), (".webm", live)):
        text = value_text(field, data)
        assert text.startswith("4.8 s, 64 x 48, 25 frames per second, ")


def test_sounds_that_cannot_be_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged sounds have the reason; without a package to read them they are as other bytes."""
    assert value_text(".wav", b"RIFF").startswith("not decoded: LibsndfileError: ")
    monkeypatch.setitem(sys.modules, "av", None)
    assert value_text(".mp4", b"1234") == "b'1234', 4 B"


def test_samples_fit_the_window() -> None:
    """Each field is one line, cut at the width."""
    text = sample_text({".txt": b"x" * 200, ".seg.png": b"", "__key__": "a"}, 40)

    assert text.splitlines()[0] == ".txt     " + "x" * 30 + "…"
    assert max(map(len, text.splitlines())) == 40


def test_sizes() -> None:
    """A size has at most one decimal and a unit."""
    sizes = [0, 999, 1000, 1_234_567, 5e12, float("nan")]
    assert [nbytes_text(n) for n in sizes] == [
        "0 B", "999 B", "1.0 kB", "1.2 MB", "5.0 TB", "?",
    ]  # fmt: skip


def test_tables_line_up() -> None:
    """A column is as wide as its widest cell."""
    assert table(["a", "bb"], [["long", 1], ["x", None]]) == "a     bb\nlong  1\nx     None"


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0, "0%"), (0.001, "<1%"), (0.15, "15%"), (0.9995, ">99%"), (1, "100%")],
)
def test_shares_are_not_rounded_to_none_or_all(share: float, expected: str) -> None:
    """0% and 100% are exact."""
    assert share_text(share) == expected


def test_counts_agree_with_their_noun() -> None:
    """One is singular."""
    assert [count_text(n, "shard") for n in (0, 1, 1000)] == ["0 shards", "1 shard", "1,000 shards"]
