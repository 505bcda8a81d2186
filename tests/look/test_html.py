"""Values, samples and pictures → HTML."""

from __future__ import annotations

import io
import math
import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import need_weights, raises
from events import LONG_S, wait_for
from looks import HOSTILE
from PIL import Image

from wids.look.field_facts import _decoders, decoded
from wids.look.html import field_html, sample_html, thumbnail
from wids.shards.fields.decode import Decoder
from wids.shards.fields.safety import within_s


@pytest.mark.parametrize(
    ("field", "value", "parts"),
    [
        (".txt", HOSTILE, ["&lt;script&gt;"]),
        (".txt", "a\nb", ["<pre>a\nb</pre>"]),
        (".txt", "x" * 5000, ["<details>", "5,000 characters"]),
        (".json", {"a": HOSTILE, "b": list(range(99))}, ["<details>", "2 keys", "&lt;script&gt;"]),
        (".json", {"a": 1}, ["<code>{&quot;a&quot;: 1}</code>"]),
        (".jpg", Image.new("RGB", (9, 8)), ['class="tiny"', "data:image/png", "image 9 x 8 RGB"]),
        (".jpg", Image.new("RGB", (200, 8)), ["data:image/jpeg", "image 200 x 8 RGB"]),
        (".png", Image.new("RGBA", (9, 8)), ["data:image/png"]),
        (".jpg", np.zeros((16, 17, 3), np.uint8), ["data:image", "ndarray (16, 17, 3) uint8"]),
        (".jpg", torch.zeros((3, 16, 17)), ["data:image", "Tensor (3, 16, 17) torch.float32"]),
        (".npy", np.zeros((2, 3)), ["ndarray (2, 3) float64"]),
        (".npy", np.full((16, 16), 7.5), ["ndarray (16, 16) float64"]),
        (".wav", b"RIFF", ["<audio controls", "data:audio/wav"]),
        (".opus", b"OggS", ["<audio controls", "data:audio/ogg"]),
        (".mp4", b"x", ["<video controls"]),
        (".avi", b"RIFF", ["4 B; not all browsers can play it</small>"]),
        (".mp4", memoryview(bytes(21_000_000)), ["21.0 MB; too large to play here</small>"]),
        (".cls", 3, ["3"]),
        (".cls", b"cat", ['class="bad"', "cannot be decoded"]),
        (".jpg", b"\x00", ['class="bad none"', "not a picture that can be shown, 1 B"]),
        (".bin", b"\x00<b>", ["&lt;b&gt;"]),
    ],
)
def test_values_as_html(field: str, value: object, parts: list[str]) -> None:
    """Each kind of value is shown, decoded or not, and nothing is run."""
    html = field_html(field, value)
    for part in parts:
        assert part in html
    assert "<script" not in html


def test_samples_as_html() -> None:
    """A sample is rows of fields, then its origin without secrets."""
    html = sample_html(
        {
            ".txt": "x",
            f".{HOSTILE}": "y",
            "__key__": HOSTILE,
            "__index__": 7,
            "__shard__": "https://user:pw@h/a.tar?token=secret",
            "__shardindex__": 3,
            "__dataset__": "d",
        }
    )
    assert "<script" not in html
    assert "sample 7" in html
    assert "position 3" in html
    assert "secret" not in html
    assert "pw" not in html


def test_showing_changes_nothing() -> None:
    """The caller's own picture stays as it is, and a numpy scalar shows its value."""
    stream = io.BytesIO()
    Image.new("RGB", (4000, 300)).save(stream, "JPEG")
    image = Image.open(stream)
    sample_html({".jpg": image})
    assert image.size == (4000, 300)
    assert field_html(".cls", np.int64(3)) == "<small>3</small>"


@pytest.mark.parametrize("size", [b"100000 100000", b"6500 6500"])
def test_huge_pictures_are_not_decoded(size: bytes) -> None:
    """A picture that claims ten billion pixels, or 42 million, is not decoded (SEC-13)."""
    stream = b"P5 " + size + b" 255\n" + bytes(100)
    with raises(ValueError, "pixels"):
        thumbnail(stream)


@pytest.mark.parametrize("is_progressive", [False, True])
def test_large_photographs_are_decoded_in_small(is_progressive: bool) -> None:
    """A JPEG of 49 million pixels costs the memory of its eighth, unless it is progressive."""
    stream = io.BytesIO()
    Image.new("L", (7000, 7000)).save(stream, "JPEG", progressive=is_progressive)
    if is_progressive:
        with raises(ValueError, "JPEG 7000 x 7000 L: too many pixels to show"):
            thumbnail(stream.getvalue())
    else:
        small, _, description, *_ = thumbnail(stream.getvalue())
        assert Image.open(io.BytesIO(small)).size == (256, 256)
        assert description == "JPEG 7000 x 7000 L"


_LOOKS = """
import io, resource, sys
from concurrent.futures import ThreadPoolExecutor
from PIL import Image
from wids.look.html import thumbnail

data = open(sys.argv[1], "rb").read()
thumbnail(open(sys.argv[2], "rb").read())  # imports what it needs
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with ThreadPoolExecutor(5) as threads:
    assert len(set(threads.map(thumbnail, [data] * 5))) == 1
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.long
def test_looks_at_once_take_the_memory_of_two(tmp_path: Path) -> None:
    """Five looks at a picture of 64 MB when decoded take 128 MB and not 640 (SEC-53)."""
    for name, size in (("large.png", (4000, 4000)), ("small.png", (9, 9))):
        Image.new("RGB", size).save(tmp_path / name)
    result = subprocess.run(
        [sys.executable, "-c", _LOOKS, tmp_path / "large.png", tmp_path / "small.png"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert int(result.stdout) < 180_000_000


def test_films_that_hang_are_counted() -> None:
    """While two that were given up are decoded, no other is; pictures are (SEC-53)."""
    released = threading.Event()
    stream = io.BytesIO()
    Image.new("RGB", (9, 9)).save(stream, "PNG")
    for _ in range(2):
        with raises(ValueError, "took longer than 0.01 s"):
            decoded(partial(within_s, 0.01, lambda: released.wait(60)))
    with raises(ValueError, "2 decoders that were given up still run"):
        decoded(partial(within_s, 0.01, lambda: True))
    assert thumbnail(stream.getvalue()).width == 9
    released.set()
    assert decoded(partial(within_s, LONG_S, lambda: True))


def test_small_pictures_come_first() -> None:
    """Of what waits for the two threads, pictures with fewer pixels are made earlier (SEC-53)."""
    released, order = [threading.Event() for _ in range(2)], list[float]()
    both = [decoded_later(event.wait) for event in released]
    later = [decoded_later(partial(order.append, cost), cost) for cost in (math.inf, 9, 5, 7)]
    released[0].set()
    for thread in later:
        thread.join()
    assert order == [5, 7, 9, math.inf]  # of one thread, while the other is occupied
    released[1].set()
    for thread in both:
        thread.join()


def decoded_later(decode: Callable[[], Any], cost: float = 0) -> threading.Thread:
    """Have something decoded, and return the thread that waits for it, once it is in the queue."""
    before = repr(_decoders._numbers)  # count(7)
    thread = threading.Thread(target=decoded, args=(decode, cost))
    thread.start()
    wait_for(lambda: repr(_decoders._numbers) != before)
    return thread


def test_pictures_in_a_forked_process() -> None:
    """A process that is forked where the threads already run has threads of its own."""
    stream = io.BytesIO()
    Image.new("RGB", (9, 9)).save(stream, "PNG")
    thumbnail(stream.getvalue())
    child = multiprocessing.get_context("fork").Process(target=thumbnail, args=(stream.getvalue(),))
    child.start()
    child.join(LONG_S)
    assert child.exitcode == 0


def test_archives_are_shown_up_to_a_length() -> None:
    """A small ``.npz`` or ``.pt`` that is large when decompressed is not decoded (SEC-53)."""
    need_weights()
    stream = io.BytesIO()
    np.savez_compressed(stream, a=np.zeros(5_000_000, np.uint8))
    for field in (".npz", ".pt"):
        html = field_html(field, stream.getvalue())
        assert "longer than 2000000 bytes when decompressed" in html


@pytest.mark.parametrize("form", ["PNG", "TIFF", "PPM"])
@pytest.mark.parametrize("width", [32, 200])  # each pixel is seen, or not
def test_16_bit_pictures_are_shown_as_training_sees_them(form: str, width: int) -> None:
    """Scaled to 8 bits, not white: in cards, the large view and notebooks, as bytes or decoded."""
    grey = np.linspace(0, 65535, width * 40).reshape(40, width).astype(np.uint16)
    stream = io.BytesIO()
    Image.fromarray(grey).save(stream, form)
    (expected,) = Decoder("rgb8")({".png": stream.getvalue()}).values()
    for value in (stream.getvalue(), Image.open(stream)):
        small = thumbnail(value, 200)
        found = np.asarray(Image.open(io.BytesIO(small.data)).convert("RGB"))
        assert np.abs(found.astype(int) - expected).max() <= 3
    assert "data:image" in field_html(".npy", grey)
