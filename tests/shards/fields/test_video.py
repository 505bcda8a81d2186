"""Films become frames, clips or readers with the frames that PyAV decodes, within limits."""

from __future__ import annotations

import http.server
import importlib.util
import io
import struct
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from conftest import need, optional, raises
from events import LONG_S, in_time
from recordings import FFMPEG, film, film_of_pngs, picture, png, sound, sound_by_ffmpeg, wav
from torch.utils.data import DataLoader

import wids
from wids.shards.fields import frame_index, safety, video
from wids.shards.fields.codecs import media_extensions

av = optional("av")


@cache
def decoded(data: bytes) -> list[npt.NDArray[np.uint8]]:
    """Return all frames by PyAV alone."""
    with av.open(io.BytesIO(data)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def shown(frames: torch.Tensor) -> list[npt.NDArray[np.uint8]]:
    """Return frames in the order of PyAV's arrays."""
    return list(frames.permute(0, 2, 3, 1).numpy())


@pytest.mark.parametrize(
    "extension",
    [
        "mp4",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("mov", "mkv", "webm", "avi")),
    ],
)
def test_files_of_ffmpeg(extension: str, tmp_path: Path) -> None:
    """Each format, as ffmpeg writes it, has the frames and sound that PyAV reads from the file."""
    need(FFMPEG, "ffmpeg")
    path = tmp_path / f"film.{extension}"
    inputs = ["testsrc=size=64x48:rate=25:duration=2", "sine=frequency=440:duration=2"]
    arguments = [part for each in inputs for part in ("-f", "lavfi", "-i", each)]
    command = [str(FFMPEG), "-loglevel", "error", *arguments, "-pix_fmt", "yuv420p", str(path)]
    subprocess.run(command, check=True, timeout=60)
    expected = decoded(path.read_bytes())
    with av.open(str(path)) as container:
        sound = np.concatenate([each.to_ndarray() for each in container.decode(audio=0)], axis=1)
        rate = container.streams.audio[0].rate
    sample = wids.Decoder(video="frames")({f".{extension}": path.read_bytes()})
    frames, samples, info = sample[f".{extension}"]
    assert np.array_equal(frames.numpy(), np.stack(expected))
    assert info == {"video_fps": 25.0, "audio_fps": rate}
    scale = 32768 if sound.dtype == np.int16 else 1  # of avi, whose sound PyAV returns as integers
    assert samples.shape == sound.shape
    assert np.allclose(samples.numpy(), sound / scale, atol=1e-4)
    reader = wids.Decoder(video="reader")({f".{extension}": path.read_bytes()})[f".{extension}"]
    indices = [49, 0, 13, 12, 13, 48]
    assert all(map(np.array_equal, shown(reader.frames(indices)), [expected[n] for n in indices]))


@pytest.mark.parametrize("distance", [1, 12, 300])
@pytest.mark.parametrize("at", [0.0, 0.5, 1.0, 11.3])
def test_clips(distance: int, at: float) -> None:
    """A clip has the frames at equal distances, wherever films can be sought."""
    data = film(300, distance=distance)
    expected = decoded(data)
    clip = wids.Clips(num_frames=5, stride=3, at=at)(data)
    assert (clip.dtype, clip.shape) == (torch.uint8, (5, 3, 48, 64))
    wanted = [expected[min(299, round(at * 25) + 3 * n)] for n in range(5)]
    assert all(map(np.array_equal, shown(clip), wanted))


def test_a_short_film_repeats_its_last_frame() -> None:
    """A clip of a film that is too short has its last frame several times."""
    data = film(4)
    expected = decoded(data)
    clip = shown(wids.Clips(num_frames=6, at=0.0)(data))
    assert all(map(np.array_equal, clip, [*expected, expected[3], expected[3]]))


def test_random_clips_follow_seed_and_epoch(tmp_path: Path) -> None:
    """map(seed=…) chooses clips: the same for any number of workers, others each epoch."""
    path = tmp_path / "x.tar"
    with wids.TarWriter(path) as writer:
        for number in range(4):
            writer.write({"__key__": f"{number}", "mp4": film(100)})
    decode = wids.Decoder(video=wids.Clips(num_frames=2, stride=2))
    dataset = wids.ShardListDataset(path).map(decode, seed=1)

    def clips(workers: int, epoch: int) -> list[Any]:
        dataset.set_epoch(epoch)
        loader = DataLoader(dataset, batch_size=None, num_workers=workers)
        return [sample[".mp4"] for sample in loader]

    first, again, later = clips(0, 0), clips(2, 0), clips(0, 1)
    assert all(map(torch.equal, first, again))
    assert not all(map(torch.equal, first, later))
    with raises(wids.DecodeError, "dataset.map(decoder, seed=0)"):
        decode({".mp4": film(4)})


def test_reader() -> None:
    """A reader states length, rate and size, and returns frames by number and by time."""
    with wids.VideoReader(film(50, size=(32, 16))) as reader:
        assert (len(reader), reader.rate, reader.duration_s) == (50, 25.0, 2.0)
        assert (reader.width, reader.height, reader.audio_rate) == (32, 16, None)
        assert torch.equal(reader.frames(seconds=[0.4, 1.96]), reader.frames([10, 49]))
        assert reader.frames([]).shape == (0, 3, 16, 32)
        with raises(IndexError, "frame 50 is out of range for 50 frames"):
            reader.frames([50])
        with raises(ValueError, "either indices or seconds"):
            reader.frames()


def test_what_is_not_asked_for_stays_bytes() -> None:
    """Without video= a film stays bytes, as in earlier versions."""
    data = film(2)
    assert wids.Decoder("torch")({".mp4": data}) == {".mp4": data}


def test_names_of_webdataset(tmp_path: Path) -> None:
    """``"torch_video"`` among transformations returns what webdataset's decoder returns."""
    with wids.TarWriter(tmp_path / "x.tar") as writer:
        writer.write({"__key__": "a", "mp4": film(10, has_sound=True), "json": {"n": 3}})
    path = tmp_path / "x.tar"
    with wids.ShardListDataset(path, raw="bytes", transformations=["torch_video"]) as dataset:
        frames, samples, info = dataset[0][".mp4"]
        assert dataset[0][".json"] == b'{"n": 3}'
    assert (frames.shape, frames.dtype) == ((10, 48, 64, 3), torch.uint8)
    assert (samples.dtype, samples.ndim) == (torch.float32, 2)
    assert info == {"video_fps": 25.0, "audio_fps": 8000}


@pytest.mark.parametrize("has_sound", [True, False])
def test_the_form_of_webdataset(tmp_path: Path, has_sound: bool) -> None:
    """``"torch_video"`` has the form of ``webdataset.torch_video`` (autodecode.py).

    That is what ``torchvision.io.read_video(…, pts_unit="sec")`` returns: a tuple of uint8 frames
    of shape (frames, height, width, channels), float32 sound of shape (channels, frames), of
    shape (1, 0) where there is none, and a dict with ``video_fps`` and, with sound, ``audio_fps``.
    """
    data = film(10, has_sound=has_sound)
    with wids.TarWriter(tmp_path / "x.tar") as writer:
        writer.write({"__key__": "a", "mp4": data})
    with wids.ShardListDataset(tmp_path / "x.tar", transformations=["torch_video"]) as dataset:
        value = dataset[0][".mp4"]
    assert (type(value), len(value)) == (tuple, 3)
    frames, samples, info = value
    assert (type(frames), frames.dtype, type(samples)) == (torch.Tensor, torch.uint8, torch.Tensor)
    assert np.array_equal(frames.numpy(), np.stack(decoded(data)))
    assert samples.dtype == torch.float32
    if has_sound:
        assert samples.shape[0] == 2  # the encoder of aac made two channels of one
        assert samples.shape[1] >= 8000 * 10 / 25
    else:
        assert samples.shape == (1, 0)
    assert (type(info), type(info["video_fps"])) == (dict, float)
    assert info == {"video_fps": 25.0, **({"audio_fps": 8000} if has_sound else {})}


def test_extensions_of_webdataset() -> None:
    """``"torch_video"`` decodes what ``webdataset.torch_video`` does, but for four extensions."""
    webdataset = optional("webdataset")
    if importlib.util.find_spec("torchvision") is not None:
        pytest.skip("webdataset would decode here")
    theirs = set()
    for name in [
        "avi",
        "h264",
        "m4v",
        "mjpeg",
        "mkv",
        "mov",
        "mp4",
        "mpg",
        "ogv",
        "webm",
        "wmv",
        "txt",
        "wav",
    ]:
        try:
            assert webdataset.torch_video(f"a.{name}", b"") is None
        except ModuleNotFoundError:  # of torchvision: it would decode
            theirs.add(name)
    assert theirs - set(media_extensions("video")) == {"h264", "mjpeg", "mpg", "wmv"}


def test_batches_of_clips(tmp_path: Path) -> None:
    """Clips of films of different lengths are collated to one tensor."""
    with wids.TarWriter(tmp_path / "x.tar") as writer:
        for length in (5, 30):
            writer.write({"__key__": f"{length}", "mp4": film(length)})
    decode = wids.Decoder(video=wids.Clips(num_frames=8, at=0.0))
    dataset = wids.ShardListDataset(tmp_path / "x.tar", transformations=decode)
    batch = next(iter(DataLoader(dataset, batch_size=2, collate_fn=wids.collate)))
    assert batch[".mp4"].shape == (2, 8, 3, 48, 64)


def test_limits() -> None:
    """Frames beyond max_nbytes are refused, and a short clip is decoded."""
    data = film(20)
    with raises(wids.DecodeError, "more than 20000 bytes (`max_nbytes`)"):
        wids.Decoder(video="frames", max_nbytes=20_000)({".mp4": data})
    assert wids.Clips(2, at=0.0, max_nbytes=20_000)(data).shape == (2, 3, 48, 64)
    with raises(ValueError, "more than 20000 bytes"):
        wids.VideoReader(data, max_nbytes=20_000).frames([0, 1, 2])


def test_pictures_that_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A film of too many pixels is refused before a frame is decoded."""
    monkeypatch.setattr(frame_index, "MAX_PIXELS", 100)
    with raises(wids.DecodeError, "expected frames of 1 to 100 pixels, found 64 by 48"):
        wids.Decoder(video="frames")({".mp4": film(2)})


def test_streams(tmp_path: Path) -> None:
    """A film of 64 streams is decoded, and one of 65 is refused in every way (SEC-65)."""
    need(FFMPEG, "ffmpeg")
    source = ["-f", "lavfi", "-i", "testsrc=size=32x32:rate=5:duration=0.4"]
    found = []
    for count in (64, 65):
        path = tmp_path / f"{count}.mkv"
        streams = [*(["-map", "0:v"] * count), "-c:v", "mpeg4", "-threads", "1"]
        command = [str(FFMPEG), "-loglevel", "error", *source, *streams, str(path)]
        subprocess.run(command, check=True, timeout=60)
        found.append(path.read_bytes())
    assert wids.Decoder(video="frames")({".mkv": found[0]})[".mkv"][0].shape == (2, 32, 32, 3)
    for way in ("frames", "reader", wids.Clips(1, at=0.0)):
        with raises(wids.DecodeError, "expected at most 64 streams, found 65"):
            wids.Decoder(video=way)({".mkv": found[1]})


def test_a_film_that_ends_early() -> None:
    """An mkv that was cut off is an error in a loop, as it is for ``verify --decode``."""
    data = film(200, format_name="matroska")
    decode = wids.Decoder(video="frames")
    assert decode({".mkv": data})[".mkv"][0].shape[0] == 200
    for check in (lambda cut: decode({".mkv": cut}), video.check_film):
        with raises((wids.DecodeError, ValueError), "expected 8.0 s, found"):
            check(data[: len(data) // 2])


@pytest.mark.parametrize("way", ["frames", "reader", wids.Clips(2, at=0.0)])
def test_a_missing_package(monkeypatch: pytest.MonkeyPatch, way: Any) -> None:
    """Without PyAV only decoding is an error, which names the extra."""
    monkeypatch.setitem(sys.modules, "av", None)
    decode = wids.Decoder(video=way)
    with raises(wids.DecodeError, 'field ".mp4"', "pip install 'wids[video]'"):
        decode({".mp4": b"film"})
    assert decode({".txt": b"a cat"}) == {".txt": "a cat"}


def test_a_decoder_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding that does not end is given up, and the process goes on."""
    released = threading.Event()
    monkeypatch.setattr(video.audio, "MAX_S", 0.2)
    monkeypatch.setattr(video.VideoReader, "all_frames", lambda _: released.wait(60))
    started_s = time.monotonic()
    with raises(wids.DecodeError, "took longer than 0.2 s, and was given up"):
        wids.Decoder(video="frames")({".mp4": film(2)})
    assert time.monotonic() - started_s < 10
    released.set()
    for thread in threading.enumerate():
        if thread.name == "wids-decode":
            thread.join(10)


def test_an_error_in_the_thread_is_raised() -> None:
    """What decoding raises reaches the caller, a time-out of its own included."""
    with raises(TimeoutError, "mine"):
        safety.within_s(9, lambda: (_ for _ in ()).throw(TimeoutError("mine")))


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b"GIF89a", film(3)[:200]])
def test_damaged(data: bytes) -> None:
    """Bytes that are no film are a DecodeError that names the field."""
    with raises(wids.DecodeError, 'field ".mp4": expected mp4 data'):
        wids.Decoder(video="frames")({".mp4": data})


def test_a_playlist_opens_nothing(tmp_path: Path) -> None:
    """A field that names other files and addresses makes nothing read them (SEC-65)."""
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_error(404)

    (tmp_path / "secret.mp4").write_bytes(film(3))
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/part.ts"
        lists = [
            f"#EXTM3U\n#EXTINF:10,\n{url}\n#EXTINF:10,\nfile://{tmp_path}/secret.mp4\n",
            f"ffconcat version 1.0\nfile {tmp_path}/secret.mp4\n",
            f"ffconcat version 1.0\nfile {url}\n",
        ]
        for text in lists:
            with raises(wids.DecodeError, "decoder refuses"):
                wids.Decoder(video="frames")({".mp4": text.encode()})
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert requests == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_frames": 0}, "num_frames: expected at least 1"),
        ({"stride": 0}, "stride: expected at least 1"),
        ({"at": -1.0}, 'at: expected seconds or "random"'),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    """A wrong option is an error when the clips are described."""
    with raises(ValueError, message):
        wids.Clips(**options)


def test_a_wrong_name() -> None:
    """A misspelt name is an error when the decoder is made."""
    with raises(ValueError, 'video: expected "frames", "reader" or wids.Clips'):
        wids.Decoder(video="clip")


def test_frames_of_the_film_are_right() -> None:
    """The frames of the test's film are its pictures, as far as the codec keeps them."""
    frames = decoded(film(30))
    for number in (0, 17, 29):
        difference = frames[number].astype(int) - picture(number, (64, 48))
        assert np.abs(difference).mean() < 12


_PEAK = """
import resource, sys
import wids
from wids.look.field_facts import poster
import io

decoders = {
    "frames": wids.Decoder(video="frames"),
    "clip": wids.Decoder(video=wids.Clips(2, at=0.0)),
    "sound": wids.Decoder(audio="numpy"),
    "poster": lambda sample: {".mov": poster(io.BytesIO(sample[".mov"]))},
}
def tried(name):
    data = open(name, "rb").read()
    field = "." + name.rpartition(".")[2]
    try:
        return decoders[sys.argv[1]]({field: data})[field]
    except ValueError as error:
        return error
tried(sys.argv[2])  # imports what it needs
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = tried(sys.argv[3])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, type(found).__name__)
"""


def peak(way: str, harmless: Path, bomb: Path) -> tuple[int, str]:
    """Return the megabytes that decoding takes in a process of its own, and the type it ends in."""
    command = [sys.executable, "-c", _PEAK, way, str(harmless), str(bomb)]
    megabytes, kind = subprocess.check_output(command, text=True, timeout=100).split()
    return int(megabytes), kind


@pytest.mark.long
@pytest.mark.parametrize("way", ["frames", "clip", "poster"])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_frame_that_is_larger_than_its_track_says(
    tmp_path: Path, way: str, is_first: bool
) -> None:
    """One frame of 256 million pixels in a track of 64 x 64 takes no memory (SEC-65).

    As the first frame it is decoded by FFmpeg to find out what the stream is.
    """
    harmless, bomb = tmp_path / "a.mov", tmp_path / "b.mov"
    small, large = png(64, 64), png(16_000, 16_000)
    harmless.write_bytes(film_of_pngs([small, small, small]))
    bomb.write_bytes(film_of_pngs([large, small] if is_first else [small, large, small]))
    assert bomb.stat().st_size < 2_000_000
    megabytes, kind = peak(way, harmless, bomb)
    assert megabytes < 100
    # A poster is the frame of a time, which is found in the list of packets: here a small one.
    assert kind in (("Thumbnail",) if way == "poster" else ("DecodeError", "ValueError"))


@pytest.mark.long
def test_a_picture_inside_a_sound(tmp_path: Path) -> None:
    """The cover of an m4a, which FFmpeg decodes while it probes, takes no memory (SEC-65)."""
    need(FFMPEG, "ffmpeg")
    (tmp_path / "a.wav").write_bytes(wav())
    for name, side in (("small", 64), ("large", 16_000)):
        (tmp_path / f"{name}.png").write_bytes(png(side, side))
        inputs = ["-i", "a.wav", "-i", f"{name}.png", "-map", "0", "-map", "1"]
        options = ["-c:v", "copy", "-c:a", "aac", "-disposition:v:0", "attached_pic"]
        command = [str(FFMPEG), "-loglevel", "error", *inputs, *options, f"{name}.m4a"]
        subprocess.run(command, check=True, cwd=tmp_path, timeout=60)
    megabytes, kind = peak("sound", tmp_path / "small.m4a", tmp_path / "large.m4a")
    assert kind == "tuple"
    assert megabytes < 100


@pytest.mark.long
def test_a_picture_inside_an_mp3(tmp_path: Path) -> None:
    """The cover of an mp3 that FFmpeg reads takes no memory either (SEC-65)."""
    samples, rate = sound()
    options = {"write_xing": "0", "id3v2_version": "0"}
    data = sound_by_ffmpeg("mp3", "libmp3lame", samples, rate, container_options=options)
    for name, side in (("small", 64), ("large", 16_000)):
        cover = b"\0image/png\0\x03\0" + png(side, side)
        frame = b"APIC" + struct.pack(">IH", len(cover), 0) + cover
        size = bytes(len(frame) >> shift & 127 for shift in (21, 14, 7, 0))
        (tmp_path / f"{name}.mp3").write_bytes(b"ID3\x03\0\0" + size + frame + data)
    megabytes, kind = peak("sound", tmp_path / "small.mp3", tmp_path / "large.mp3")
    assert kind == "tuple"
    assert megabytes < 100


@pytest.mark.parametrize("name", ["mpegts", "mpeg"])
def test_films_that_are_probed_without_limits(name: str) -> None:
    """FFmpeg has no limits for streams that follow the header: these are refused (SEC-65)."""
    with raises(wids.DecodeError, "decoder refuses"):
        wids.Decoder(video="frames")({".mp4": film(5, format_name=name)})


def test_decoders_that_hang_count_until_they_end() -> None:
    """While two that were given up still run, nothing else is decoded; then it is (SEC-65)."""
    released = threading.Event()
    for _ in range(2):
        with raises(ValueError, "took longer than 0.01 s"):
            safety.within_s(0.01, lambda: released.wait(60))
    called: list[int] = []
    with raises(ValueError, "2 decoders that were given up still run"):
        safety.within_s(0.01, lambda: called.append(1))
    assert not called
    assert len([t for t in threading.enumerate() if t.name == "wids-decode"]) == 2
    released.set()
    assert safety.within_s(9, lambda: 5) == 5


def test_a_decoder_that_was_given_up_ends_after_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it occupies is free once the frame is decoded, not once the film is (SEC-65)."""
    monkeypatch.setattr(video.audio, "MAX_S", 0.1)
    frames: list[Any] = []
    given_up = threading.Event()
    monkeypatch.setattr(
        video.VideoReader, "_pixels", lambda _, frame: (frames.append(frame), given_up.wait(60))
    )

    def attempt() -> int | None:
        given_up.clear()
        with raises(wids.DecodeError, "took longer than 0.1 s"):
            wids.Decoder(video="frames")({".mp4": film(30)})
        given_up.set()
        for thread in threading.enumerate():
            if thread.name == "wids-decode":
                thread.join(LONG_S)
                assert not thread.is_alive()
        return len(frames) or None  # it was given up before its first frame

    assert in_time(attempt) == 1
