"""``wids pack``: a folder of files → a dataset, and the two next things to do."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import interrupted, run, write_bare_shards
from conftest import need, sample_members, write_tar
from events import in_time
from PIL import Image
from recordings import film, sound

from wids import ShardListDataset
from wids.cli import main as cli
from wids.shards.fields.encode import encode

Run = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_pictures_that_end_early(tmp_path: Path) -> None:
    """A remark counts and names them, by the bytes of any format."""
    (tmp_path / "photos").mkdir()
    noise = Image.effect_noise((64, 64), 90)
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP"):
        path = tmp_path / "photos" / f"{kind}.{'jpg' if kind == 'JPEG' else kind.lower()}"
        noise.save(path, kind)
        data = path.read_bytes()
        path.with_stem("whole").write_bytes(data + b"by a camera" * (kind == "JPEG"))
        if kind != "BMP":
            path.write_bytes(data[:-600])
    (tmp_path / "photos" / "a.txt").write_text("no picture")

    status, out, _ = run("pack", "photos", "-o", "new", "-j", 2, "--maxcount", 3, cwd=tmp_path)

    assert status == 0
    (line,) = [line for line in out.splitlines() if "early" in line]
    assert "note: 4 pictures end early: GIF.gif, JPEG.jpg, PNG.png, …; `wids verify" in line
    status, out, _ = run("verify", "--decode", "new.json", cwd=tmp_path)
    assert status == 1
    assert all(f'"{name}"' in out for name in ("JPEG", "WEBP"))
    assert '"whole"' not in out


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two class folders of pictures of different sizes, with captions."""
    for number in range(6):
        path = tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number}.JPG"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20 + number, 30), (number * 40, 0, 0)).save(path, "JPEG")
        path.with_suffix(".txt").write_text(f"picture {number}")
    return tmp_path / "photos"


def test_dataset_index(photos: Path) -> None:
    """The output has the counts, what was left out and why, and the two next commands."""
    (photos / ".DS_Store").touch()
    (photos / "cat" / "Makefile").touch()

    status, out, err = run("pack", "photos", "-o", "new/train", "--maxcount", 4, cwd=photos.parent)

    assert (status, err) == (0, "")
    assert out == (
        "new/train.json: 6 samples, 2 shards, 30.7 kB\n"
        "field  samples\n"
        ".cls   6\n"
        ".jpg   6\n"
        ".txt   6\n"
        "classes, in the spec: 2: cat, dog\n"
        "left out: 1 hidden: .DS_Store\n"
        "left out: 1 without an extension: cat/Makefile\n"
        "\n"
        "Next:\n"
        "    wids browse new/train.json\n"
        "\n"
        "    import wids\n"
        "    from torch.utils.data import DataLoader\n"
        "\n"
        "    dataset = wids.ShardListDataset('new/train.json', transformations=\"torch\")\n"
        "    sampler = wids.DistributedChunkedSampler(dataset)\n"
        "    loader = DataLoader(\n"
        "        dataset, batch_size=32, sampler=sampler, collate_fn=list, num_workers=2\n"
        "    )\n"
        "    for batch in loader:  # a list of samples, which may differ in size\n"
        "        images = [sample['.jpg'] for sample in batch]\n"
        "        labels = [sample['.cls'] for sample in batch]\n"
    )
    assert run("verify", "--decode", "new/train.json", cwd=photos.parent)[0] == 0


@pytest.fixture
def pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run a command in this process and the folder of the test, as `run` does in its own."""
    monkeypatch.chdir(tmp_path)

    def run_here(*arguments: object) -> tuple[int, str, str]:
        status = cli.main(list(map(str, arguments)))
        return status, *capsys.readouterr()

    return run_here


def next_lines(out: str) -> tuple[str, str]:
    """Return the command and the lines of Python that the output ends with."""
    command, _, code = out.partition("Next:\n")[2].partition("\n\n")
    return command.strip(), "\n".join(line[4:] for line in code.splitlines())


def test_the_next_commands_work_as_printed(photos: Path, pack: Run) -> None:
    """The lines of a DataLoader run, with every sample; the page is served."""
    (photos / "dog" / "a name with 'quotes'.png").write_bytes((photos / "cat/0.JPG").read_bytes())
    _, out, _ = pack("pack", "photos", "-o", "new folder/it's")
    command, code = next_lines(out)
    found: dict[str, Any] = {"seen": 0}
    exec(code + "\n    seen += len(images)", found)  # noqa: S102 - as a user types it
    assert (found["seen"], len(found["dataset"])) == (7, 7)
    found["dataset"].close()

    words = shlex.split(command)
    assert words[0] == "wids"
    process = subprocess.Popen(
        [sys.executable, "-m", "wids", *words[1:]],
        cwd=photos.parent,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"http://127.0.0.1:")
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["1.png", "2.jpg"], "dataset.to_tuple('.jpg;.png')"),
        (["1.png", "2.jpg", "3.txt"], "images = [sample.get('.jpg', sample.get('.png', None))"),
        (["1.jpg", "2.txt"], "images = [sample.get('.jpg', None)"),
        (["1.wav"], "audio = [sample['.wav']"),
        (["1.mp4", "1.json"], "clips = [sample['.mp4'] for sample in batch]\n    records"),
        (["1.txt", "1.json", "2.txt", "2.json"], "texts = [sample['.txt']"),
        (["1.wav", "2.flac"], "audio, = zip(*batch)"),
        (["1.wav", "1.txt", "2.flac", "2.txt"], "dataset.to_tuple('.flac;.wav', '.txt')"),
        (["1.abc", "2.def"], 'keys = [sample["__key__"]'),
    ],
)
def test_the_lines_are_for_the_fields_that_there_are(
    files: list[str],
    expected: str,
    tmp_path: Path,
    pack: Run,
) -> None:
    """Whatever is packed, the printed lines run over all of it."""
    (tmp_path / "in").mkdir()
    for name in files:
        path = tmp_path / "in" / name
        if path.suffix in (".png", ".jpg"):
            Image.new("RGB", (4, 4)).save(path)
        elif path.suffix == ".mp4":
            path.write_bytes(film(2))
        elif path.suffix in (".wav", ".flac"):
            path.write_bytes(encode(path.suffix[1:], sound()))
        else:
            path.write_text("7")
    status, out, _ = pack("pack", "in")
    _, code = next_lines(out)
    assert status == 0
    assert expected in code
    found: dict[str, Any] = {}
    exec(code.replace("num_workers=2", "num_workers=0"), found)  # noqa: S102 - as a user types it
    assert len(found["batch"]) == len({name.split(".")[0] for name in files})


def test_options(photos: Path, pack: Run) -> None:
    """The options of the command are those of the function."""
    assert pack("pack", photos, "--no-classes", "--sorted", "-n", "mine")[0] == 0
    with ShardListDataset("photos.json") as dataset:
        assert dataset.dataset_name == "mine"
        assert dataset[0]["__key__"] == "cat/0"
        assert ".cls" not in dataset[0]
    status, _, err = pack("pack", photos)
    assert (status, "already exists" in err, "--replace" in err) == (1, True, True)
    assert pack("pack", photos, "--replace", "--maxsize", "10kB", "-j", 2)[0] == 0
    assert len(list(photos.parent.glob("photos-*.tar"))) == 6
    with pytest.raises(SystemExit, match="2"):
        cli.main(["pack", "x", "--seed", "1", "--sorted"])


def test_unreadable_files_are_status_one(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script notices that something could not be packed."""
    (photos / "dog" / "3.txt").chmod(0)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # noqa: ARG005 - root may read it
    assert cli.main(["pack", str(photos), "-o", str(photos.parent / "out")]) == 1


def test_errors_are_one_line(tmp_path: Path, pack: Run) -> None:
    """A folder that cannot be packed is one line on standard error, and status 1."""
    (tmp_path / "in").mkdir()
    status, out, err = pack("pack", "in")
    assert (status, out) == (1, "")
    assert err == "wids: in: expected files such as 0001.jpg, found an empty folder\n"
    assert pack("pack", "missing")[2].startswith("wids: missing: no such folder")


def test_create_says_to_use_pack(photos: Path, tmp_path: Path, pack: Run) -> None:
    """`wids create` on a folder of plain files names the command for them."""
    status, _, err = pack("create", photos, "-o", tmp_path / "a.json")
    assert status == 1
    assert "photos/: expected a folder with .tar files" in err
    assert "wids pack" in err
    assert "wids pack" in pack("create", photos / "cat", "-o", tmp_path / "a.json")[2]
    (tmp_path / "empty").mkdir()
    assert "wids pack" not in pack("create", tmp_path / "empty", "-o", tmp_path / "a.json")[2]
    shards = tmp_path / "shards"
    shards.mkdir()
    write_bare_shards(shards)
    assert "use wids create" in pack("pack", shards / "train-000000.tar")[2]
    assert "wids create" in pack("pack", shards, "-o", tmp_path / "b")[2]


@pytest.mark.long
def test_an_interrupted_pack_is_resumed(tmp_path: Path) -> None:
    """Ctrl-C while two processes write: no process and no part of a shard is left."""
    (tmp_path / "in").mkdir()
    for number in range(200):
        (tmp_path / "in" / f"{number}.bin").write_bytes(bytes([number % 256]) * 50_000)
    arguments = ["pack", "in", "-o", "out", "--maxcount", "4", "-j", "2"]

    def press() -> tuple[int, str] | None:
        for path in tmp_path.glob("out*"):  # if an earlier attempt came too late
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        is_at_work = (tmp_path / "out-000002.tar").exists
        return interrupted(*arguments, cwd=tmp_path, is_at_work=is_at_work)

    status, err = in_time(press)
    assert status == 130, err
    assert err.splitlines()[-1] == "wids: interrupted"
    left = {path.name for path in tmp_path.iterdir()} - {"in", "out.partial"}
    assert all(name.startswith("out-") for name in left)
    assert len(left) < 50
    assert run(*arguments, cwd=tmp_path)[0] == 0
    assert run("pack", "in", "-o", "again", "--maxcount", "4", "-j", "1", cwd=tmp_path)[0] == 0
    for path in tmp_path.glob("out-*.tar"):
        other = tmp_path / path.name.replace("out", "again")
        assert path.read_bytes() == other.read_bytes()


@pytest.mark.long
def test_progress_is_in_bytes(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bar shows how many bytes are packed, on standard error, with any number of processes."""
    monkeypatch.setattr("wids.storage.progress.DELAY_S", 0)
    monkeypatch.setenv("WIDS_PROGRESS", "1")
    for jobs in ("1", "2"):
        output = str(photos.parent / jobs)
        assert cli.main(["pack", str(photos), "-o", output, "--maxcount", "1", "-j", jobs]) == 0
        err = capsys.readouterr().err
        assert "packing:" in err
        assert "/61.4k " in err
        assert "B/s" in err


@pytest.mark.long
def test_a_full_disk(tmp_path: Path) -> None:
    """An error names the folder without space, no source file; the run continues."""
    need(os.geteuid() == 0 and sys.platform == "linux", "root on Linux, to mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=5500k", "tmpfs", str(disk)]
    need(subprocess.run(mount, check=False).returncode == 0, "the right to mount")
    try:
        (tmp_path / "in").mkdir()
        for number in range(24):
            (tmp_path / "in" / f"{number:02d}.bin").write_bytes(bytes([number]) * 300_000)
        arguments = ["pack", tmp_path / "in", "-o", disk / "out", "--maxcount", 8, "-j", 1]
        status, _, err = run(*arguments)
        text = f"{disk}: expected space for all shards, found: No space left on device"
        assert (status, err.count(text), f"{tmp_path}/in" in err) == (1, 1, False), err
        assert sorted(os.listdir(disk)) == ["out-000000.tar", "out-000001.tar", "out.partial"]
        subprocess.run(["mount", "-o", "remount,size=19m", str(disk)], check=True)
        assert run(*arguments)[0] == 0
        assert run("verify", disk / "out.json")[0] == 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_with_a_tar_among_samples(tmp_path: Path, pack: Run) -> None:
    """Tars are never packed into tars unnoticed."""
    write_tar(tmp_path / "a.tar", sample_members(0, 2))
    (tmp_path / "1.txt").write_text("x")
    assert "found tars, 1 in all: a.tar" in pack("pack", tmp_path, "-o", tmp_path.parent / "o")[2]


def test_classes_of_another_split(tmp_path: Path) -> None:
    """A spec, a file of lines or names with commas fix the numbers of classes (PACK-7)."""
    for path in ("train/bird/1", "train/cat/1", "test/cat/1"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / f"{path}.txt").write_text(path)
    assert run("pack", "train", cwd=tmp_path)[0] == 0
    (tmp_path / "names").write_text("bird\r\n\ncat\n")
    for value in ("train.json", "names", "bird,cat"):
        assert run("pack", "test", "--replace", "--classes", value, cwd=tmp_path)[0] == 0
        dataset = ShardListDataset([tmp_path / "train.json", tmp_path / "test.json"])
        assert (dataset.classes, dataset[2][".cls"]) == (["bird", "cat"], 1), value
    assert run("pack", "test", "--replace", "--classes", cwd=tmp_path)[0] == 0
    assert ShardListDataset(tmp_path / "test.json").classes == ["cat"]
    status, _, err = run("pack", "train", "--replace", "--classes", "cat", cwd=tmp_path)
    assert (status, "found others: bird" in err) == (1, True), err
