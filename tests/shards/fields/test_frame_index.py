"""Frame ``n`` of a film is frame ``n`` of decoding it from the beginning, in every container."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from conftest import optional, raises
from recordings import copied, film, numbered_film, shown_number

import wids
from wids.shards.fields import frame_index, video

av = optional("av")

NUM_FRAMES: Final = 120
B_FRAMES: Final = {"bf": "3", "preset": "fast"}
OPEN: Final = {"bf": "3", "x264-params": "open-gop=1:bframes=5:keyint=12:min-keyint=12:scenecut=0"}
HEVC: Final = "log-level=none:keyint=12:min-keyint=12:bframes=4:scenecut=0:open-gop="
FRAGMENTS: Final = {"movflags": "frag_keyframe+empty_moov"}
ALTERNATE: Final = {"auto-alt-ref": "1", "lag-in-frames": "16", "cpu-used": "8"}
VARIED: Final = np.cumsum(np.random.default_rng(3).integers(1, 90, NUM_FRAMES)).tolist()

h264 = cache(partial(numbered_film, "mp4", "libx264", options=B_FRAMES))
open_h264 = cache(partial(numbered_film, "mp4", "libx264", options=OPEN))
mpeg4 = cache(partial(numbered_film, "mp4", "mpeg4", options={"bf": "2"}))


@cache
def hevc(is_open: int) -> bytes:
    return numbered_film("mp4", "libx265", options={"x265-params": f"{HEVC}{is_open}"})


def hidden(number: int, data: bytes) -> bytes:
    """Return a packet of VP8, of which a few say that they are not shown."""
    return bytes([data[0] & ~0x10]) + data[1:] if number in (5, 17, 40) else data


def skipped(number: int, data: bytes) -> bytes:
    """Return a packet of MPEG-4, of which a few say that there is no frame."""
    if number not in (5, 17, 40):
        return data
    bits = "".join(f"{byte:08b}" for byte in data[4:10])
    at = bits.index("0", 2) + 8  # behind whole seconds, a marker, five bits of time, a marker
    header = bits[:at] + "00"  # "not coded", and the first of the bits that fill a byte
    header += "1" * (-len(header) % 8)
    return data[:4] + int(header, 2).to_bytes(len(header) // 8, "big")


def with_edits(data: bytes, edits: list[tuple[int, int]]) -> bytes:
    """Return an mp4, its moov at the end, with another list of edits: lengths and beginnings."""

    def boxes(start: int, stop: int) -> Iterator[tuple[bytes, int, int]]:
        while start < stop:
            nbytes, kind = struct.unpack_from(">I4s", data, start)
            yield kind, start + 8, start + nbytes
            start += nbytes

    def box(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I4s", len(content) + 8, kind) + content

    def changed(kind: bytes, start: int, stop: int) -> bytes:
        if kind not in (b"moov", b"trak"):
            return b"" if kind == b"edts" else box(kind, data[start:stop])
        parts = [changed(*each) for each in boxes(start, stop)]
        if kind == b"trak":
            rows = b"".join(struct.pack(">IiI", *edit, 0x10000) for edit in edits)
            parts.insert(1, box(b"edts", box(b"elst", struct.pack(">II", 0, len(edits)) + rows)))
        return box(kind, b"".join(parts))

    return b"".join(changed(*each) for each in boxes(0, len(data)))


QUICK: Final[dict[str, Callable[[], bytes]]] = {
    "H.264 in mp4": h264,
    "H.264 with open GOPs in mp4": open_h264,
    "H.264 with open GOPs in mkv": lambda: copied(open_h264(), "matroska"),
    "H.264 in fragments": lambda: copied(h264(), "mp4", container_options=FRAGMENTS),
    "cut behind a key frame, mp4": lambda: copied(h264(), "mp4", first=25),
    "cut behind a key frame, mkv": lambda: copied(h264(), "matroska", first=25),
    "begins at 10 s, mkv": lambda: copied(h264(), "matroska", shift_s=10),
    "varied rate, mkv": lambda: numbered_film(
        "matroska", "libx264", options=B_FRAMES, times=VARIED
    ),
    "MPEG-4 with B frames in avi": lambda: numbered_film("avi", "mpeg4", options={"bf": "2"}),
    "MPEG-4 in a piped avi": lambda: numbered_film("avi", "mpeg4", is_piped=True),
    "hidden packets of VP8": lambda: copied(numbered_film("webm", "libvpx"), "webm", change=hidden),
}
LONG: Final[dict[str, Callable[[], bytes]]] = {
    "H.264 in mov": lambda: numbered_film("mov", "libx264", distance=30),
    "H.264 without B frames": lambda: numbered_film("matroska", "libx264", options={"bf": "0"}),
    "H.264 with open GOPs in fragments": lambda: copied(
        open_h264(), "mp4", container_options=FRAGMENTS
    ),
    "H.264 in fragments and a moov": lambda: copied(
        h264(), "mp4", container_options={"movflags": "frag_keyframe"}
    ),
    "H.264 in fragments of frames": lambda: copied(
        h264(), "mp4", container_options={"movflags": "frag_every_frame+empty_moov"}
    ),
    "H.264 in piped fragments": lambda: numbered_film(
        "mp4", "libx264", options=B_FRAMES, container_options=FRAGMENTS, is_piped=True
    ),
    "H.264 without a list of edits": lambda: copied(
        h264(), "mp4", container_options={"use_editlist": "0"}
    ),
    "H.264 in avi, reordered": lambda: numbered_film("avi", "libx264", options=B_FRAMES),
    "H.264 in avi, in order": lambda: numbered_film("avi", "libx264", options={"bf": "0"}),
    "H.264, key frames alone": lambda: numbered_film("mp4", "libx264", distance=1),
    "H.264 with pyramids": lambda: numbered_film(
        "mp4",
        "libx264",
        options={"x264-params": "bframes=8:b-pyramid=normal:keyint=24:scenecut=0:open-gop=1"},
    ),
    "H.264 with short open GOPs": lambda: numbered_film(
        "matroska",
        "libx264",
        options={"x264-params": "keyint=3:min-keyint=1:bframes=2:open-gop=1:b-adapt=0:scenecut=0"},
    ),
    "H.264 that refreshes": lambda: numbered_film(
        "mp4", "libx264", options={"x264-params": "intra-refresh=1:keyint=30"}
    ),
    "H.264 of live mkv": lambda: numbered_film(
        "matroska", "libx264", options=B_FRAMES, container_options={"live": "1"}, is_piped=True
    ),
    "H.265 with open GOPs in mp4": lambda: hevc(1),
    "H.265 with open GOPs in mkv": lambda: copied(hevc(1), "matroska"),
    "H.265 with closed GOPs": lambda: hevc(0),
    "H.265, 16 B frames": lambda: numbered_film(
        "mp4",
        "libx265",
        options={"x265-params": "log-level=none:keyint=40:bframes=16:open-gop=1:b-adapt=0"},
    ),
    "MPEG-4 with B frames in mp4": mpeg4,
    "MPEG-4 with B frames in mkv": lambda: copied(mpeg4(), "matroska"),
    "MPEG-4 with B frames in a piped avi": lambda: numbered_film(
        "avi", "mpeg4", options={"bf": "2"}, is_piped=True
    ),
    "MPEG-4 without B frames in avi": lambda: numbered_film("avi", "mpeg4"),
    "MPEG-4 without key frames": lambda: copied(
        numbered_film("mp4", "mpeg4", distance=500), "mp4", first=5
    ),
    "skipped frames of MPEG-4": lambda: copied(
        numbered_film("mp4", "mpeg4"), "mp4", change=skipped
    ),
    "skipped frames of MPEG-4 in mkv": lambda: copied(
        numbered_film("mp4", "mpeg4"), "matroska", change=skipped
    ),
    "MPEG-2 in mkv": lambda: numbered_film("matroska", "mpeg2video", options={"bf": "2"}),
    "MPEG-2 in avi": lambda: numbered_film("avi", "mpeg2video", options={"bf": "2"}),
    "MPEG-1 in avi": lambda: numbered_film("avi", "mpeg1video", options={"bf": "2"}),
    "motion JPEG in avi": lambda: numbered_film("avi", "mjpeg"),
    "FFV1 in mkv": lambda: numbered_film("matroska", "ffv1"),
    "VP8 in webm": lambda: numbered_film("webm", "libvpx", options=ALTERNATE),
    "VP8 in a piped webm": lambda: numbered_film("webm", "libvpx", is_piped=True),
    "VP8 in ogv": lambda: numbered_film("ogg", "libvpx"),
    "hidden packets of VP8 in avi": lambda: copied(
        numbered_film("webm", "libvpx"), "avi", change=hidden
    ),
    "VP9 in webm": lambda: numbered_film("webm", "libvpx-vp9", options=ALTERNATE),
    "VP9 in mp4": lambda: numbered_film("mp4", "libvpx-vp9", options=ALTERNATE),
    "VP9 of live webm": lambda: numbered_film(
        "webm", "libvpx-vp9", options=ALTERNATE, container_options={"live": "1"}, is_piped=True
    ),
    "AV1 in mp4": lambda: numbered_film("mp4", "libsvtav1", options={"preset": "12"}),
    "AV1 in webm": lambda: numbered_film("webm", "libsvtav1", options={"preset": "12"}),
    "begins at 10 s, mp4": lambda: copied(h264(), "mp4", shift_s=10),
    "varied rate, mp4": lambda: numbered_film("mp4", "libx264", options=B_FRAMES, times=VARIED),
    "varied rate in fragments": lambda: numbered_film(
        "mp4", "libx264", options=B_FRAMES, times=VARIED, container_options=FRAGMENTS
    ),
    "varied rate, MPEG-4": lambda: numbered_film("mp4", "mpeg4", options={"bf": "2"}, times=VARIED),
    "2,000 frames per second, mkv": lambda: numbered_film("matroska", "mpeg4", rate=2000),
    "sound in mp4": lambda: numbered_film("mp4", "libx264", options=B_FRAMES, has_sound=True),
    "longer sound in mkv": lambda: numbered_film(
        "matroska", "libx264", options=B_FRAMES, has_sound=True
    ),
    "one frame": lambda: numbered_film("mp4", "mpeg4", num_frames=1),
    "edits that leave out the beginning": lambda: with_edits(h264(), [(3000, 512 * 13 + 1024)]),
    "edits that leave out the end": lambda: with_edits(h264(), [(2360, 1024)]),
    "edits that repeat": lambda: with_edits(
        numbered_film("mp4", "mpeg4"), [(1000, 0), (1000, 0), (2000, 512 * 5)]
    ),
    "edits that leave out the middle": lambda: with_edits(
        h264(), [(1000, 512 * 17 + 1024), (1000, 512 * 70 + 1024)]
    ),
    **{
        f"{name} cut before packet {first}, {format_name}": partial(
            lambda make, first, format_name: copied(make(), format_name, first=first),
            make,
            first,
            format_name,
        )
        for name, make in (("H.264", open_h264), ("H.265", partial(hevc, 1)), ("MPEG-4", mpeg4))
        for first in (1, 7, 14, 24)
        for format_name in ("mp4", "matroska")
    },
}
films = pytest.mark.parametrize(
    "make",
    [
        *(pytest.param(make, id=name) for name, make in QUICK.items()),
        *(pytest.param(make, id=name, marks=pytest.mark.long) for name, make in LONG.items()),
    ],
)


def decoded(data: bytes) -> list[int]:
    """Return the numbers of all frames by PyAV alone."""
    with av.open(io.BytesIO(data)) as container:
        frames = container.decode(video=0)
        return [shown_number(frame.to_ndarray(format="rgb24")) for frame in frames]


def numbers(frames: Any) -> list[int]:
    """Return those of a tensor of frames."""
    return [shown_number(each) for each in frames.permute(0, 2, 3, 1).numpy()]


@films
def test_frames_by_number(make: Callable[[], bytes]) -> None:
    """Any frame, alone, with others and all at once, is the one of decoding from the beginning."""
    data = make()
    expected = decoded(data)
    with wids.VideoReader(data) as reader:
        assert len(reader) == len(expected)
        assert numbers(reader.frames(range(len(expected)))) == expected
        places = np.random.default_rng(0).permutation(len(expected)).tolist()
        for place in places[:12]:
            assert numbers(reader.frames([place])) == [expected[place]]
        assert numbers(reader.frames(places)) == [expected[place] for place in places]
        assert numbers(reader.frames([-1, 0])) == [expected[-1], expected[0]]
        with raises(IndexError, f"frame 300 is out of range for {len(expected)} frames"):
            reader.frames([300])
        with raises(IndexError, f"frame -300 is out of range for {len(expected)} frames"):
            reader.frames([-300])
    whole = wids.Decoder(video="frames")({".mp4": data})[".mp4"][0]
    assert [shown_number(each) for each in whole.numpy()] == expected
    video.check_film(data)


@pytest.mark.long
@films
def test_random_clips(make: Callable[[], bytes]) -> None:
    """Each of 150 random clips has consecutive frames, and they come from the whole film."""
    data = make()
    expected = decoded(data)
    stride, count = (2, 4) if len(expected) >= 40 else (1, 1)
    span = stride * (count - 1) + 1
    clips = wids.Clips(count, stride)
    generator = np.random.default_rng(0)
    following = [expected[n : n + span : stride] for n in range(len(expected) - span + 1)]
    begun = []
    for _ in range(150):
        clip = numbers(clips(data, generator))
        assert clip in following
        begun.append(following.index(clip) / max(1, len(following) - 1))
    if len(following) > 20:
        assert min(begun) < 0.1
        assert max(begun) > 0.9


@pytest.mark.parametrize("is_piped", [False, True])
def test_random_clips_come_from_everywhere_with_equal_chance(is_piped: bool) -> None:
    """Also where the film states no length, no part of it comes more often than others."""
    data = numbered_film("webm", "libvpx", num_frames=13, is_piped=is_piped)
    generator, clips = np.random.default_rng(1), wids.Clips(4)
    begun = [numbers(clips(data, generator))[0] for _ in range(100)]
    counts = np.bincount(begun, minlength=10)
    assert len(counts) == 10
    assert ((counts - 10) ** 2 / 10).sum() < 27.9  # chi-square of 9 degrees: 1 in 1,000


@films
def test_times_count_from_the_first_frame(make: Callable[[], bytes]) -> None:
    """A time has the last frame that is shown by then, and the length ends with the last frame."""
    data = make()
    with av.open(io.BytesIO(data)) as container:
        unit = container.streams.video[0].time_base
        frames = [
            (float((frame.pts or 0) * unit), shown_number(frame.to_ndarray(format="rgb24")))
            for frame in container.decode(video=0)
        ]
    times = [time for time, _ in frames]
    if times != sorted(set(times)) or data[8:12] == b"AVI ":  # whose times FFmpeg guesses
        return
    with wids.VideoReader(data) as reader:
        places = range(0, len(frames), 14)
        seconds = [times[place] - times[0] for place in places]
        assert numbers(reader.frames(seconds=seconds)) == [frames[place][1] for place in places]
        assert 0 < reader.duration_s - (times[-1] - times[0]) < 1.1
        if len(frames) > 21:
            clip = wids.Clips(4, 2, at=seconds[1])(data)
            assert numbers(clip) == [number for _, number in frames[14:22:2]]


def test_a_film_that_ends_early() -> None:
    """An mp4 whose last packets are missing says so, where they are wanted."""
    data = film(50)
    at = data.index(b"moov") - 4
    moov, media = data[at:], data[:at]
    # Its beginning is kept, and its list, which is moved behind what was in its place.
    short = media[: len(media) // 2] + b"\0" * (len(media) - len(media) // 2) + moov
    with wids.VideoReader(short) as reader:
        assert len(reader) == 50
        assert reader.frames([3]).shape == (1, 3, 48, 64)
    with raises(wids.DecodeError, 'field ".mp4"'):
        wids.Decoder(video="frames")({".mp4": short})


def test_packets_that_are_counted_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more packets are counted than the memory may have times of (SEC-65)."""
    monkeypatch.setattr(frame_index, "_MAX_FRAMES", 100)
    data = numbered_film("matroska", "mpeg4")
    with wids.VideoReader(data) as reader, raises(ValueError, "expected at most 100 frames"):
        len(reader)
    assert wids.Clips(4, at=1.0)(data).shape == (4, 3, 48, 64)


def test_counting_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting packets takes no longer than decoding may (SEC-65)."""
    monkeypatch.setattr(video.audio, "MAX_S", 0.0)
    reader = wids.VideoReader(numbered_film("matroska", "mpeg4"))
    with raises(ValueError, "and was given up"):
        len(reader)


def test_a_closed_reader() -> None:
    """A reader that was closed says so, and does not crash."""
    for format_name in ("mp4", "matroska", "avi"):
        with wids.VideoReader(numbered_film(format_name, "mpeg4")) as reader:
            pass
        with raises(ValueError, "found one that was closed"):
            reader.frames([5])


class Counting(io.BytesIO):
    """A file that counts what is read of it."""

    num_read = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.num_read += len(data)
        return data


@pytest.mark.parametrize("format_name", ["mp4", "matroska"])
def test_clips_and_frames_read_only_what_they_need(format_name: str) -> None:
    """A clip reads the index and the bytes near the clip; numbers all bytes, but for a list."""
    data = film(500, distance=12, format_name=format_name, bit_rate=4_000_000)
    for clips in (wids.Clips(4, at=10.0), wids.Clips(4)):
        clips(file := Counting(data), np.random.default_rng(0))
        assert 0 < file.num_read < len(data) / 10
    with wids.VideoReader(file := Counting(data)) as reader:
        reader.frames([250])
        has_list = format_name == "mp4" and hasattr(av.VideoStream, "index_entries")
        assert (file.num_read < len(data) / 10) == has_list


_GROWTH = """
import resource, sys
import numpy as np
import wids
data, generator, clips = open(sys.argv[1], "rb").read(), np.random.default_rng(0), wids.Clips(4)
def peak(times):
    for _ in range(times):
        clips(data, generator)
        with wids.VideoReader(data) as reader:
            reader.frames([5, 40])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(-peak(100) + peak(500))
"""


@pytest.mark.long
@pytest.mark.parametrize("name", ["H.264 in mp4", "cut behind a key frame, mkv", "VP8 in ogv"])
def test_memory_of_many_clips(tmp_path: Path, name: str) -> None:
    """500 clips and frames by number, of each way of counting, leave nothing behind."""
    path = tmp_path / "film"
    path.write_bytes({**QUICK, **LONG}[name]())
    command = [sys.executable, "-c", _GROWTH, str(path)]
    assert int(subprocess.check_output(command, timeout=300)) < 8_000_000
