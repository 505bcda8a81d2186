"""Audio becomes the samples that libsndfile decodes, and is written and read again."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
import torch
from conftest import need, optional, raises
from recordings import FFMPEG, sound, sound_by_ffmpeg, wav
from torch.utils.data import DataLoader

import wids
from wids.shards.fields import audio
from wids.shards.fields.audio import audio_facts, check_audio
from wids.shards.fields.codecs import media_extensions
from wids.shards.fields.encode import encode

soundfile = optional("soundfile")


def converted(folder: Path, data: bytes, *arguments: str) -> bytes:
    """Return what ffmpeg makes of a wav."""
    need(FFMPEG, "ffmpeg")
    (folder / "in.wav").write_bytes(data)
    target = folder / arguments[-1]
    command = [str(FFMPEG), "-loglevel", "error", "-i", "in.wav", *arguments]
    subprocess.run(command, check=True, cwd=folder, timeout=60)
    return target.read_bytes()


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "PCM_U8", "FLOAT"])
@pytest.mark.parametrize("num_channels", [1, 3])
def test_samples_of_wavs(subtype: str, num_channels: int) -> None:
    """A part of a wav of any depth has the values that soundfile reads as floats, bit by bit."""
    file = io.BytesIO()
    values = np.random.default_rng(0).uniform(-1, 1, (9000, num_channels))
    values[:2] = [[-1.0] * num_channels, [1.0] * num_channels]
    soundfile.write(file, values, 9000, subtype, format="WAV")
    expected, _ = soundfile.read(io.BytesIO(file.getvalue()), dtype="float32", always_2d=True)
    for start, stop in ((0, 9000), (4500, 6750)):
        decode = wids.Audio("numpy", start_s=start / 9000, duration_s=(stop - start) / 9000)
        samples, _ = decode(file.getvalue())
        assert samples.dtype == np.float32
        assert samples.tobytes() == expected[start:stop].T.tobytes()


FILES = {
    "wav": (),
    "flac": (),
    "mp3": (),
    "ogg": ("-c:a", "libvorbis"),
    "opus": ("-ar", "48000"),
}


@pytest.mark.parametrize(
    "extension",
    [
        pytest.param(name, marks=() if name in ("wav", "mp3") else pytest.mark.long)
        for name in FILES
    ],
)
def test_files_of_ffmpeg(extension: str, tmp_path: Path) -> None:
    """Each format, as ffmpeg writes it, has the samples that soundfile reads from the file."""
    data = converted(tmp_path, wav(), *FILES[extension], f"out.{extension}")
    expected, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    sample = wids.Decoder(audio="torch")({f".{extension}": data})
    samples, found_rate = sample[f".{extension}"]
    assert (samples.dtype, samples.shape) == (torch.float32, expected.T.shape)
    assert found_rate == rate
    # soundfile seeks first, after which the decoder of mp3 rounds otherwise.
    assert np.allclose(samples.numpy(), expected.T, rtol=0, atol=1e-6 * (extension == "mp3"))


def test_m4a_by_pyav(tmp_path: Path) -> None:
    """An m4a, which libsndfile does not read, has the samples that PyAV decodes."""
    av = optional("av")
    data = converted(tmp_path, wav(), "out.m4a")
    with av.open(io.BytesIO(data)) as file:
        expected = np.concatenate([frame.to_ndarray() for frame in file.decode(audio=0)], axis=1)
    samples, rate = wids.Audio("numpy")(data)
    assert rate == 8000
    assert np.array_equal(samples, expected)
    part, _ = wids.Audio("numpy", start_s=0.5, duration_s=0.25)(data)
    assert np.array_equal(part, expected[:, 4000:6000])


def test_a_title_that_is_not_utf8(tmp_path: Path) -> None:
    """The title of a file may have any bytes, with each version of PyAV."""
    optional("av")
    data = converted(tmp_path, wav(), "-metadata", "title=a title", "out.m4a")
    data = data.replace(b"a title", b"\xe9 title")
    assert wids.Audio("numpy")(data)[0].shape[1] >= 8000


@pytest.mark.parametrize("extension", ["wav", "flac", "ogg"])
def test_a_part_is_a_part_of_the_whole(extension: str) -> None:
    """A part has the same samples as that part of the whole file."""
    data = encode(extension, sound())
    whole, rate = wids.Audio("numpy")(data)
    part, _ = wids.Audio("numpy", start_s=0.5, duration_s=0.25)(data)
    assert np.array_equal(part, whole[:, rate // 2 : rate // 2 + rate // 4])
    rest, _ = wids.Audio("numpy", start_s=0.9, duration_s=5.0)(data)
    assert np.array_equal(rest, whole[:, int(0.9 * rate) :])
    beyond, _ = wids.Audio("numpy", start_s=7.0)(data)
    assert beyond.shape == (2, 0)


def test_an_m4a_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FFmpeg is given up after a time, and the process goes on."""
    optional("av")
    data = converted(tmp_path, wav(), "out.m4a")
    released = threading.Event()
    monkeypatch.setattr(audio, "MAX_S", 0.2)
    monkeypatch.setattr(audio, "opened_media", lambda _: released.wait(60))
    with raises(wids.DecodeError, "took longer than 0.2 s, and was given up"):
        wids.Decoder(audio="torch")({".m4a": data})
    released.set()
    for thread in threading.enumerate():
        if thread.name == "wids-decode":
            thread.join(10)


def test_what_is_not_asked_for_stays_bytes() -> None:
    """Without audio= a sound stays bytes, as in earlier versions."""
    data = wav()
    assert wids.Decoder("torch")({".wav": data, ".cls": b"3"}) == {".wav": data, ".cls": 3}


def test_names_of_webdataset(tmp_path: Path) -> None:
    """``"torch_audio"`` among transformations decodes sounds and nothing else."""
    with wids.TarWriter(tmp_path / "x.tar") as writer:
        writer.write({"__key__": "a", "wav": wav(), "cls": 3})
    path = tmp_path / "x.tar"
    with wids.ShardListDataset(path, raw="bytes", transformations=["torch_audio"]) as dataset:
        samples, rate = dataset[0][".wav"]
        assert (tuple(samples.shape), rate, dataset[0][".cls"]) == ((2, 8000), 8000, b"3")
    with wids.ShardListDataset(path, transformations=["torch", "torch_audio"]) as dataset:
        assert dataset[0][".cls"] == 3
        assert torch.equal(dataset[0][".wav"][0], samples)


def test_the_form_of_webdataset(tmp_path: Path) -> None:
    """``"torch_audio"`` has the form of ``webdataset.torch_audio`` (autodecode.py).

    That is what ``torchaudio.load`` returns with its defaults: a tuple of a float32 tensor, scaled
    to -1 to 1, of shape (channels, frames), and the rate as an int.
    """
    samples = np.array([[0, 16384, -32768, 32767], [1, 2, 3, 4]], np.int16)
    with wids.TarWriter(tmp_path / "x.tar") as writer:
        writer.write({"__key__": "a", "wav": (samples, 22050), "one.flac": (samples[:1], 8000)})
    with wids.ShardListDataset(tmp_path / "x.tar", transformations=["torch_audio"]) as dataset:
        decoded = dataset[0]
    for field, expected, rate in ((".wav", samples, 22050), (".one.flac", samples[:1], 8000)):
        value = decoded[field]
        assert (type(value), len(value), type(value[1]), value[1]) == (tuple, 2, int, rate)
        assert (type(value[0]), value[0].dtype) == (torch.Tensor, torch.float32)
        assert value[0].tolist() == (expected / 32768).tolist()


def test_extensions_of_webdataset() -> None:
    """``"torch_audio"`` decodes what ``webdataset.torch_audio`` does, but for two extensions."""
    webdataset = optional("webdataset")
    if importlib.util.find_spec("torchaudio") is not None:
        pytest.skip("webdataset would decode here")
    theirs = set()
    for name in ["flac", "m4a", "mp3", "ogg", "opus", "sox", "wav", "wma", "aac", "mp4", "txt"]:
        try:
            assert webdataset.torch_audio(f"a.{name}", b"") is None
        except ModuleNotFoundError:  # of torchaudio: it would decode
            theirs.add(name)
    assert theirs - set(media_extensions("audio")) == {"sox", "wma"}


def test_mono_and_rate() -> None:
    """A sound becomes the mean of its channels, and has the wanted rate and length."""
    optional("soxr")
    data = wav()
    whole, _ = wids.Audio("numpy")(data)
    mono, _ = wids.Audio("numpy", mono=True)(data)
    assert np.allclose(mono, whole.mean(axis=0, keepdims=True))
    samples, rate = wids.Audio("torch", rate=16000, mono=True)(data)
    assert (tuple(samples.shape), rate) == ((1, 16000), 16000)
    # A tone keeps its frequency.
    spectrum = np.abs(np.fft.rfft(samples[0].numpy()))
    assert spectrum.argmax() == 440


def test_random_parts_follow_seed_and_epoch(tmp_path: Path) -> None:
    """map(seed=…) chooses parts: the same for any number of workers, others each epoch."""
    path = tmp_path / "x.tar"
    with wids.TarWriter(path) as writer:
        for number in range(6):
            writer.write({"__key__": f"{number}", "wav": sound(seed=number)})
    decode = wids.Decoder(audio=wids.Audio(start_s="random", duration_s=0.1))
    dataset = wids.ShardListDataset(path).map(decode, seed=5)

    def parts(workers: int, epoch: int) -> list[Any]:
        dataset.set_epoch(epoch)
        loader = DataLoader(dataset, batch_size=None, num_workers=workers)
        return [sample[".wav"][0] for sample in loader]

    first, again, later = parts(0, 0), parts(2, 0), parts(0, 1)
    assert [part.shape for part in first] == [(2, 800)] * 6
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, later))


def test_a_random_part_needs_a_seed() -> None:
    """A random part without a generator is an error that names the way."""
    decode = wids.Decoder(audio=wids.Audio(start_s="random", duration_s=0.1))
    with raises(wids.DecodeError, r"found none; pass the decoder to dataset.map(decoder, seed=0)"):
        decode({".wav": wav()})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"container": "list"}, 'audio: expected "torch" or "numpy", found \'list\''),
        ({"rate": 0}, "rate: expected 1 to"),
        ({"start_s": -1.0}, "start_s: expected 0 seconds or more"),
        ({"start_s": "random"}, "expected duration_s beside it"),
        ({"duration_s": 0.0}, "duration_s: expected more than 0"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    """A wrong option is an error when the decoder is made."""
    with raises(ValueError, message):
        wids.Audio(**options)


def test_a_wrong_name() -> None:
    """A misspelt name is an error when the decoder is made."""
    with raises(ValueError, 'audio: expected "torch", "numpy" or wids.Audio'):
        wids.Decoder(audio="tensor")


def test_limits() -> None:
    """A sound beyond max_nbytes is refused, and a part of it is decoded."""
    data = wav()
    with raises(wids.DecodeError, "longer than 1000 bytes when decoded (`max_nbytes`)"):
        wids.Decoder(audio="numpy", max_nbytes=1000)({".wav": data})
    part, _ = wids.Audio("numpy", duration_s=0.01, max_nbytes=1000)(data)
    assert part.shape == (2, 80)


def wav_of_silence(num_channels: int, num_frames: int) -> bytes:
    """Return a wav of 16 bits with any number of channels."""
    data = bytes(2 * num_channels * num_frames)
    width = 2 * num_channels
    header = struct.pack("<HHIIHH", 1, num_channels, 8000, 8000 * width, width, 16)
    chunks = b"WAVEfmt " + struct.pack("<I", len(header)) + header
    chunks += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks


def test_channels() -> None:
    """A wav of 64 channels is decoded, and one of 65 is refused, a part of it too (SEC-65)."""
    samples, _ = wids.Audio("numpy")(wav_of_silence(64, 10))
    assert samples.shape == (64, 10)
    for options in (wids.Audio("numpy"), wids.Audio("numpy", duration_s=0.0001)):
        with raises(wids.DecodeError, "expected at most 64 channels, found 65"):
            wids.Decoder(audio=options)({".wav": wav_of_silence(65, 10)})


def test_channels_of_an_m4a(tmp_path: Path) -> None:
    """FFmpeg decodes no sound of 65 channels: the header is refused before (SEC-65)."""
    optional("av")
    need(FFMPEG, "ffmpeg")
    source = ["-f", "s16le", "-ar", "8000", "-ac", "65", "-i", "-"]
    path = tmp_path / "out.m4a"
    command = [str(FFMPEG), "-loglevel", "error", *source, "-c", "copy", "-f", "mov", str(path)]
    subprocess.run(command, input=bytes(130 * 100), check=True, timeout=60)
    with raises(wids.DecodeError, "expected at most 64 channels, found 65"):
        wids.Decoder(audio="numpy")({".m4a": path.read_bytes()})


@pytest.mark.long
def test_streams_of_an_m4a(tmp_path: Path) -> None:
    """An m4a of 64 streams is decoded, and one of 65 is refused (SEC-65)."""
    optional("av")
    copied = ["-c", "copy", "-f", "mov"]
    data, more = (
        converted(
            tmp_path, wav_of_silence(1, 80), *["-map", "0:a"] * count, *copied, f"{count}.m4a"
        )
        for count in (64, 65)
    )
    assert wids.Audio("numpy")(data)[0].shape == (1, 80)
    with raises(wids.DecodeError, "expected at most 64 streams, found 65"):
        wids.Decoder(audio="numpy")({".m4a": more})


def test_a_header_that_lies() -> None:
    """A header that claims an hour of sound makes no memory for it."""
    data = bytearray(wav())
    at = data.index(b"data") + 4
    data[at : at + 4] = struct.pack("<I", 2 * 2 * 8000 * 3600)
    data[4:8] = struct.pack("<I", 2**31)
    samples, _ = wids.Audio("numpy")(bytes(data))
    assert samples.shape == (2, 8000)


def with_rate(data: bytes, rate: int) -> bytes:
    """Return a wav whose header states another rate."""
    return data[:24] + struct.pack("<I", rate) + data[28:]


def test_a_rate_that_makes_much_of_little() -> None:
    """Channels x rate x length: a low rate would make gigabytes when it is resampled (SEC-65)."""
    decode = wids.Audio("numpy", rate=16_000, max_nbytes=8_000_000)
    assert decode(with_rate(wav(), 200))[0].shape == (2, 640_000)
    with raises(ValueError, "longer than 8000000 bytes when decoded"):
        decode(with_rate(wav(), 100))
    for rate in (1, 2**31 - 1):  # soxr would take minutes
        with raises(ValueError, f"expected a rate to resample to 16000 Hz, found {rate} Hz"):
            decode(with_rate(wav(), rate))


def test_packets_that_are_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FFmpeg itself refuses a packet of more samples than the limit (SEC-65)."""
    data = converted(tmp_path, wav(), "out.m4a")
    assert wids.Audio("numpy")(data)[0].shape[0] == 2
    monkeypatch.setattr(audio, "_MAX_PACKET_SAMPLES", 2 * 1023)  # AAC has 1024 of each channel
    with raises(wids.DecodeError, "decoder refuses"):
        wids.Decoder(audio="numpy")({".m4a": data})


_PEAK = """
import resource, sys
import wids
decode = wids.Audio("numpy")
decode(open(sys.argv[1], "rb").read())  # imports what it needs
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
samples, _ = decode(open(sys.argv[2], "rb").read())
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / samples.nbytes)
"""


@pytest.mark.long
def test_a_long_sound_takes_its_memory_once(tmp_path: Path) -> None:
    """40 MB of samples, of a flac of a few kilobytes, are not copied to be joined (SEC-65)."""
    for name, num_frames in (("short", 10), ("long", 5_000_000)):
        silence = np.zeros((num_frames, 2), np.int16)
        soundfile.write(tmp_path / f"{name}.flac", silence, 48_000, "PCM_16")
    paths = [str(tmp_path / f"{name}.flac") for name in ("short", "long")]
    factor = subprocess.check_output([sys.executable, "-c", _PEAK, *paths], timeout=100)
    assert float(factor) < 1.6


@pytest.mark.parametrize("data", [b"", b"RIFF", b"\0" * 100, b"ID3" + b"\xff" * 100])
def test_damaged(data: bytes) -> None:
    """Bytes that are no sound are a DecodeError that names the field."""
    with raises(wids.DecodeError, 'field ".wav": expected wav data'):
        wids.Decoder(audio="torch")({".wav": data})


@pytest.mark.parametrize("extension", ["wav", "flac"])
@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_lossless(extension: str, dtype: Any) -> None:
    """What the decoder returns is written and read again without a loss, as tensor and array."""
    samples, rate = sound()
    if dtype is np.int16:
        samples = (samples * 32767).astype(np.int16)
        expected = samples.astype(np.float32) / 32768
    else:
        samples = expected = np.round(samples * 2**23).astype(np.float32) / 2**23
    for value in (samples, torch.from_numpy(samples)):
        found, found_rate = wids.Audio("numpy")(encode(extension, (value, rate)))
        assert found_rate == rate
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("extension", ["ogg", "mp3", "opus"])
def test_lossy(extension: str) -> None:
    """What is encoded with a loss sounds the same."""
    samples, rate = sound()
    found, found_rate = wids.Audio("numpy")(encode(extension, (samples, rate)))
    assert found_rate == rate
    length = min(found.shape[1], samples.shape[1])
    spectra = [np.abs(np.fft.rfft(each[0, : length // 2 * 2])) for each in (found, samples)]
    assert spectra[0].argmax() == spectra[1].argmax()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("wav", 3, "expected (samples, rate)"),
        ("wav", (np.zeros((1, 9), np.int64), 8000), "floats from -1 to 1 or of int16"),
        (
            "wav",
            (np.zeros((500, 2), np.float32), 8000),
            r"shape of samples is (channels, frames)",
        ),
        ("wav", (np.full((1, 9), np.nan, np.float32), 8000), "expected finite samples"),
        ("flac", (np.full((1, 9), 1.5, np.float32), 8000), "would clip those beyond"),
        ("opus", (np.zeros((1, 9), np.float32), 44100), "opus: expected a rate of"),
    ],
)
def test_what_cannot_be_written(field: str, value: Any, message: str) -> None:
    """A value that its format cannot store is an error."""
    with raises((TypeError, ValueError), message):
        encode(field, value)


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without soundfile only decoding is an error, which names the extra."""
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    decode = wids.Decoder(audio="torch")
    with raises(wids.DecodeError, "pip install 'wids[audio]'"):
        decode({".wav": b"RIFF"})


def test_collating_sounds(tmp_path: Path) -> None:
    """Sounds of different lengths are padded, or an error says how."""
    path = tmp_path / "x.tar"
    with wids.TarWriter(path) as writer:
        for number, length in enumerate((800, 500, 640)):
            samples, rate = sound()
            writer.write({"__key__": f"{number}", "wav": (samples[:, :length], rate)})
    dataset = wids.ShardListDataset(path, transformations=wids.Decoder(audio="torch"))
    with raises(ValueError, 'collate: field ".wav"', 'pad={".wav": 0.0}'):
        wids.collate(dataset[:])
    pad = partial(wids.collate, pad={".wav": 0.0})
    batch = next(iter(DataLoader(dataset, batch_size=3, collate_fn=pad, num_workers=1)))
    samples, rates = batch[".wav"]
    assert samples.shape == (3, 2, 800)
    assert rates.tolist() == [8000] * 3
    assert batch["__lengths__"][".wav"].tolist() == [800, 500, 640]
    assert not samples[1, :, 500:].any()
    assert torch.equal(samples[1, :, :500], dataset[1][".wav"][0])


@pytest.mark.parametrize(
    ("values", "pad", "message"),
    [
        ([torch.zeros(2, 3), torch.zeros(3, 2)], {".x": 0}, "differ in one dimension"),
        ([torch.zeros(2), torch.zeros(3, 2)], {".x": 0}, "differ in one dimension"),
        ([(torch.zeros(1, 3), 8), (torch.zeros(1, 3), 9)], {".x": 0}, "one rate, found 8, 9 Hz"),
        ([b"1", b"2"], {".x": 0}, "expected tensors, arrays or audio to pad, found bytes"),
        ([torch.zeros(2), torch.zeros(3)], {".y": 0}, "pad: expected a field of the samples, .x"),
    ],
)
def test_what_cannot_be_padded(values: list[Any], pad: dict[str, float], message: str) -> None:
    """Values that padding does not even out are an error that names the field."""
    with raises((ValueError, TypeError), message):
        wids.collate([{".x": value} for value in values], pad=pad)


def test_padding_other_arrays() -> None:
    """Arrays are padded in the dimension in which they differ, with the wanted number."""
    samples = [{".npy": np.ones((length, 2), np.int64)} for length in (1, 3)]
    batch = wids.collate(samples, pad={".npy": -1})
    assert batch[".npy"].tolist() == [[[1, 1], [-1, -1], [-1, -1]], [[1, 1]] * 3]
    assert batch["__lengths__"][".npy"].tolist() == [1, 3]


def test_bytes_are_not_collated() -> None:
    """A batch of undecoded sounds or films is an error that names their decoder."""
    with raises(TypeError, 'decode it (Decoder(audio="torch"))'):
        wids.collate([{".wav": io.BytesIO(b"x")}] * 2)
    with raises(TypeError, "decode it (Decoder(video=wids.Clips(…)))"):
        wids.collate([{".mp4": io.BytesIO(b"x")}] * 2)


def sweep(rate: int, num_channels: int, seconds: float = 6.1) -> npt.NDArray[np.float32]:
    """Return a rising tone whose second half has noise, so that bit rates vary."""
    times = np.arange(round(rate * seconds)) / rate
    tone = 0.2 * np.sin(2 * np.pi * (200 + 30 * times) * times)
    noise = 0.1 * np.random.default_rng(0).standard_normal(len(times)) * (times > seconds / 2)
    return np.stack([(tone + noise) * (1 - 0.3 * n) for n in range(num_channels)]).astype("f4")


def by_libsndfile(format_name: str, subtype: str, rate: int, num_channels: int) -> bytes:
    """Return the tone in a format of libsndfile."""
    file = io.BytesIO()
    shape = {"samplerate": rate, "channels": num_channels, "format": format_name}
    samples = sweep(rate, num_channels)
    with soundfile.SoundFile(file, "w", subtype=subtype, **shape) as target:
        for start in range(0, samples.shape[1], 1 << 14):  # Vorbis keeps each piece on its stack
            target.write(samples[:, start : start + (1 << 14)].T)
    return file.getvalue()


def mp3(rate: int, num_channels: int, quality: int | None = 7, *, is_piped: bool = False) -> bytes:
    """Return the tone, of a variable bit rate if a quality is given.

    If it is piped, it has no header that states its length.
    """
    options = {} if quality is None else {"global_quality": f"{118 * quality}", "flags": "+qscale"}
    samples = sweep(rate, num_channels)
    return sound_by_ffmpeg("mp3", "libmp3lame", samples, rate, options=options, is_piped=is_piped)


headless_mp3 = partial(mp3, is_piped=True)


def mp3_of_bit_rate(rate: int, num_channels: int, bit_rate: int) -> bytes:
    """Return the tone, all packets of which have one length."""
    options = {"b": f"{bit_rate}"}
    return sound_by_ffmpeg("mp3", "libmp3lame", sweep(rate, num_channels), rate, options=options)


def test_little_is_decoded_before_a_part_of_an_mp3_of_constant_bit_rate() -> None:
    """What its packets can refer to; of a variable bit rate, the most that any can."""
    optional("av")
    constant, variable = mp3_of_bit_rate(44_100, 2, 128_000), mp3(44_100, 2)
    num_frames = round(6.1 * 44_100)
    tagged = b"ID3\x03\0\0\0\0\0\x0aInformation"[: 10 + 10] + constant
    assert audio._frames_before(constant, num_frames) < 5 * 1152
    assert audio._frames_before(tagged, num_frames) == 1 << 14  # not the tag of the packets
    assert audio._frames_before(variable, num_frames) == 1 << 14


def wav_of_no_length() -> bytes:
    """Return a wav whose header states no bytes, as written to a pipe."""
    data = bytearray(by_libsndfile("WAV", "PCM_16", 16_000, 1))
    at = data.index(b"data") + 4
    data[at : at + 4] = data[4:8] = bytes(4)
    return bytes(data)


QUICK_SOUNDS: Final[dict[str, Callable[[], bytes]]] = {
    "mp3 of 22 kHz": lambda: mp3(22_050, 1),
    "mp3 without a header": lambda: headless_mp3(16_000, 1),
    "flac of unknown length": lambda: sound_by_ffmpeg(
        "flac", "flac", sweep(16_000, 1), 16_000, is_piped=True
    ),
    "Vorbis": lambda: by_libsndfile("OGG", "VORBIS", 24_000, 1),
    "wav of no length": wav_of_no_length,
}
LONG_SOUNDS: Final[dict[str, Callable[[], bytes]]] = {
    **{
        f"{name} of {rate} Hz": partial(make, rate, num_channels)
        for rate, num_channels in ((8000, 1), (16_000, 1), (24_000, 1), (44_100, 2), (48_000, 2))
        for name, make in {
            "mp3 of libsndfile": partial(by_libsndfile, "MP3", "MPEG_LAYER_III"),
            "mp3, constant": partial(mp3, quality=None),
            "mp3, variable": mp3,
            "mp3, variable, good": partial(mp3, quality=2),
            "mp3 without a header": headless_mp3,
            "flac": partial(by_libsndfile, "FLAC", "PCM_16"),
            "Vorbis": partial(by_libsndfile, "OGG", "VORBIS"),
            "wav": partial(by_libsndfile, "WAV", "PCM_24"),
        }.items()
    },
    **{
        f"mp3 of {bit_rate} bits a second": partial(mp3_of_bit_rate, rate, num_channels, bit_rate)
        for rate, num_channels, bit_rate in (
            *((44_100, 2, 32_000), (44_100, 1, 32_000), (44_100, 2, 320_000)),
            *((16_000, 1, 8000), (16_000, 1, 24_000), (22_050, 2, 160_000)),
        )
    },
    "Opus of 16 kHz": lambda: by_libsndfile("OGG", "OPUS", 16_000, 1),
    "Opus of 48 kHz": lambda: by_libsndfile("OGG", "OPUS", 48_000, 2),
    "AAC": lambda: sound_by_ffmpeg("mp4", "aac", sweep(44_100, 2), 44_100),
    "AAC in fragments": lambda: sound_by_ffmpeg(
        "mp4",
        "aac",
        sweep(16_000, 1),
        16_000,
        container_options={"movflags": "frag_keyframe+empty_moov", "frag_duration": "1000000"},
        is_piped=True,
    ),
    "mp3 with tags": lambda: (
        b"ID3\x03\0\0" + bytes([0, 2, 0, 0]) + bytes(2 << 14) + mp3(44_100, 2) + b"TAG" + bytes(125)
    ),
    "two mp3 in one": lambda: headless_mp3(44_100, 2) * 2,
    "two mp3 with headers in one": lambda: mp3(44_100, 2) * 2,
    "the beginning of an mp3": lambda: mp3(44_100, 2)[:-20_000],
    "the beginning of a Vorbis": lambda: by_libsndfile("OGG", "VORBIS", 44_100, 2)[:-20_000],
    "wav of GSM": lambda: by_libsndfile("WAV", "GSM610", 8000, 1),
    "wav of ADPCM": lambda: by_libsndfile("WAV", "IMA_ADPCM", 16_000, 1),
}
all_sounds = pytest.mark.parametrize(
    "make",
    [
        *(pytest.param(make, id=name) for name, make in QUICK_SOUNDS.items()),
        *(
            pytest.param(make, id=name, marks=pytest.mark.long)
            for name, make in LONG_SOUNDS.items()
        ),
    ],
)


def decoded_by_ffmpeg(data: bytes) -> tuple[npt.NDArray[np.float32], int]:
    """Return the samples and the rate of a file, without packets that cannot be decoded."""
    av = optional("av")
    blocks = []
    with av.open(io.BytesIO(data)) as file:
        stream, planar = file.streams.audio[0], av.AudioResampler(format="fltp")
        for packet in file.demux(stream):
            with contextlib.suppress(av.error.InvalidDataError):
                for frame in packet.decode():
                    blocks += [each.to_ndarray() for each in planar.resample(frame)]
        return np.concatenate(blocks, axis=1), stream.rate


@all_sounds
def test_a_whole_is_what_ffmpeg_decodes(make: Callable[[], bytes]) -> None:
    """A whole has as many samples as FFmpeg decodes, and nearly the same."""
    data = make()
    expected, expected_rate = decoded_by_ffmpeg(data)
    whole, rate = wids.Audio("numpy")(data)
    if rate != expected_rate:  # FFmpeg decodes Opus to 48 kHz, libsndfile to the rate of its source
        assert whole.shape[1] * expected_rate == expected.shape[1] * rate
        return
    common = slice(0, min(whole.shape[1], expected.shape[1]))
    assert abs(whole.shape[1] - expected.shape[1]) <= (320 if b"fact" in data[:100] else 0)
    tolerance = 2e-3 if b"Opus" in data[:100] else 1e-3
    assert np.abs(whole[:, common] - expected[:, common]).max() < tolerance


@all_sounds
def test_parts_are_slices_of_the_whole(make: Callable[[], bytes]) -> None:
    """A part from anywhere, its end included, has the samples of that slice of the whole."""
    data = make()
    whole, rate = wids.Audio("numpy")(data)
    length, count = whole.shape[1], round(0.2 * rate)
    generator = np.random.default_rng(5)
    starts = [
        *generator.integers(0, length, 10).tolist(),
        *range(length - rate, length, rate // 5),
        length - 1,
    ]
    for start in starts:
        part, _ = wids.Audio("numpy", start_s=start / rate, duration_s=0.2)(data)
        expected = whole[:, start : start + count]
        assert part.shape == expected.shape
        assert np.abs(part - expected).max() < 1e-3
    rest, _ = wids.Audio("numpy", start_s=0.5)(data)
    assert np.abs(rest - whole[:, rate // 2 :]).max() < 1e-3
    check_audio(data)


@pytest.mark.long
@all_sounds
def test_random_parts_are_slices_of_the_whole(make: Callable[[], bytes]) -> None:
    """Each of 150 random parts is complete, and a slice of the whole."""
    data = make()
    whole, rate = wids.Audio("numpy")(data)
    count = round(0.2 * rate)
    generator, again = np.random.default_rng(5), np.random.default_rng(5)
    starts = []
    for _ in range(150):
        part, _ = wids.Audio("numpy", start_s="random", duration_s=0.2)(data, generator)
        assert part.shape[1] == count
        # The stated length of an m4a may leave out what its encoder added.
        start = int(again.integers(whole.shape[1] - count + 1)) if data[4:8] != b"ftyp" else -1
        if start < 0:
            start = place(whole[0], part[0])
        assert np.abs(part - whole[:, start : start + count]).max() < 1e-3
        starts.append(start / (whole.shape[1] - count))
    assert min(starts) < 0.1
    assert max(starts) > 0.9


def place(whole: npt.NDArray[np.float32], part: npt.NDArray[np.float32]) -> int:
    """Return where a part is in a whole."""
    starts = np.arange(len(whole) - len(part) + 1)
    for number, sample in enumerate(part):
        starts = starts[np.abs(whole[starts + number] - sample) < 1e-3]
    return int(starts[0])


def test_blocks_of_an_mp3_are_decoded_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long mp3, which is decoded in blocks, has the right samples where they meet."""
    monkeypatch.setattr(audio, "_BLOCK_FRAMES", 5000)
    data = mp3(16_000, 1)
    assert np.abs(wids.Audio("numpy")(data)[0] - decoded_by_ffmpeg(data)[0]).max() < 1e-3


def cut_flac() -> bytes:
    """Return a flac without its end."""
    return by_libsndfile("FLAC", "PCM_16", 16_000, 1)[:-9000]


def cut_m4a() -> bytes:
    """Return an m4a, what it states at its beginning, without its last 20 packets."""
    options = {"moov_size": "9000"}
    data = sound_by_ffmpeg("mp4", "aac", sweep(16_000, 1), 16_000, container_options=options)
    with optional("av").open(io.BytesIO(data)) as file:
        places = [packet.pos for packet in file.demux() if packet.size]
    return data[: places[-20]]


@pytest.mark.parametrize("make", [cut_flac, cut_m4a])
def test_a_sound_that_ends_early(make: Callable[[], bytes]) -> None:
    """A flac or m4a without its end is an error in a loop as in ``verify --decode``."""
    data = make()
    for decode in (wids.Audio("numpy"), check_audio):
        with pytest.raises(Exception, match=r"flac|frames|psf_fseek|expected 6\.1 s, found 4\.9 s"):
            decode(data)
    assert wids.Audio("numpy", start_s=1.0, duration_s=0.5)(data)[0].shape == (1, 8000)


def test_a_wav_that_ends_early() -> None:
    """A wav without its end decodes as far as it goes; ``verify --decode`` says what is missing."""
    data = by_libsndfile("WAV", "PCM_16", 16_000, 1)
    assert wids.Audio("numpy")(data[:-9000])[0].shape == (1, 97_600 - 4500)
    with raises(ValueError, f"expected {len(data)} bytes, found {len(data) - 9000}"):
        check_audio(data[:-9000])


@pytest.mark.parametrize("stated", [0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFF000, 0])
def test_a_wav_of_a_pipe_is_not_damaged(stated: int) -> None:
    """A wav that was written to a pipe decodes, and ``verify --decode`` finds nothing."""
    data = bytearray(wav())
    at = data.index(b"data") + 4
    data[at : at + 4] = struct.pack("<I", stated)
    data[4:8] = struct.pack("<I", min(stated + 36, 0xFFFFFFFF) if stated else 0)
    assert wids.Audio("numpy")(bytes(data))[0].shape == (2, 8000)
    check_audio(bytes(data))


def test_a_sound_without_samples() -> None:
    """An empty wav stays empty, also without PyAV."""
    data = encode("wav", (np.zeros((1, 0), np.int16), 8000))
    assert wids.Audio("numpy")(data)[0].shape == (1, 0)


@pytest.mark.parametrize("extension", ["wav", "flac", "ogg", "mp3", "opus"])
@pytest.mark.parametrize("length", [1, 400, 8000, 20_011])
def test_what_is_written_has_as_many_samples(tmp_path: Path, extension: str, length: int) -> None:
    """What ``TarWriter`` encodes decodes to as many samples."""
    samples = (0.1 * np.sin(np.arange(length) / 9)).astype(np.float32)[None]
    with wids.TarWriter(tmp_path / "x.tar") as writer:
        writer.write({"__key__": "a", extension: (samples, 16_000)})
    decode = wids.Decoder(audio="numpy")
    with wids.ShardListDataset(tmp_path / "x.tar", transformations=decode) as dataset:
        found, rate = dataset[0][f".{extension}"]
    assert (found.shape, rate) == (samples.shape, 16_000)


@pytest.mark.parametrize("name", ["mp3 without a header", "flac of unknown length"])
def test_lengths_of_sounds_that_state_none(name: str) -> None:
    """What is shown of a sound without a stated length is the length that decodes."""
    data = QUICK_SOUNDS[name]()
    whole, rate = wids.Audio("numpy")(data)
    found_rate, num_channels, length_s = audio_facts(io.BytesIO(data))
    assert (found_rate, num_channels) == (rate, len(whole))
    assert length_s == pytest.approx(whole.shape[1] / rate, abs=1e-6)


_GROWTH = """
import resource, sys
import numpy as np
import wids
data, generator = open(sys.argv[1], "rb").read(), np.random.default_rng(0)
part = wids.Audio("numpy", start_s="random", duration_s=0.2)
def peak(times):
    for _ in range(times):
        part(data, generator)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(-peak(100) + peak(500))
"""


@pytest.mark.long
@pytest.mark.parametrize("name", list(QUICK_SOUNDS))
def test_memory_of_many_parts(tmp_path: Path, name: str) -> None:
    """500 parts, by each library, leave nothing behind."""
    path = tmp_path / "sound"
    path.write_bytes(QUICK_SOUNDS[name]())
    command = [sys.executable, "-c", _GROWTH, str(path)]
    assert int(subprocess.check_output(command, timeout=300)) < 8_000_000
