"""The ``wids`` command: parse, call, print."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest
from conftest import need, sample_members, write_shards, write_tar
from loopback import Fault, Server

from wids import ShardListDataset, SpecError, demo, load_spec
from wids.cli import main as cli

COMMANDS = ["create", "info", "sample", "verify", "update", "prefetch", "cache", "demo"]


def test_both_names_are_installed() -> None:
    """``widsindex`` is the name that users know."""
    scripts = {e.name: e.value for e in entry_points(group="console_scripts")}
    assert scripts["wids"] == scripts["widsindex"] == "wids.cli.main:main"


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    """Help names the commands and goes to standard output."""
    for arguments, expected in ((["--help"], "demo"), (["--version"], version("wids"))):
        with pytest.raises(SystemExit, match="0"):
            cli.main(arguments)
        assert expected in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["demo", "--nonsense"]])
def test_wrong_usage_is_status_two(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Usage errors go to standard error."""
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "usage: wids" in captured.err


def test_errors_of_the_library_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user sees the message, not a traceback, and status 1."""

    def fail(folder: str) -> str:
        raise SpecError(f"{folder}: no")

    monkeypatch.setattr(demo, "write_dataset", fail)

    assert cli.main(["demo", "x"]) == 1
    assert capsys.readouterr().err == "wids: x: no\n"


def test_folder_that_cannot_be_written_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """An error of the system is shown as one line too."""
    assert cli.main(["demo", "/proc/nothing"]) == 1
    assert capsys.readouterr().err.startswith("wids: [Errno ")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its help says what it does and ends with an example."""
    with pytest.raises(SystemExit, match="0"):
        cli.main([command, "--help"])
    text = capsys.readouterr().out
    assert f"example:\n  wids {command} " in text or f"example:\n  wids {command}\n" in text
    assert all(len(line) <= 90 for line in text.splitlines())


def run(
    *arguments: object, stdin: str | None = None, cwd: Path | None = None
) -> tuple[int, str, str]:
    """Run the command as a user does; give status, output and errors."""
    result = subprocess.run(
        [sys.executable, "-m", "wids.cli", *map(str, arguments)],
        input=stdin,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout, result.stderr


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of three shards."""
    write_shards(tmp_path, [8, 5, 7])
    (tmp_path / "train.json").unlink()
    return tmp_path


# create


@pytest.mark.parametrize("form", ["paths", "pattern", "folder", "stdin"])
def test_create(form: str, shards: Path) -> None:
    """From paths, a pattern, a folder or names on standard input; spec and pack are the same."""
    names = sorted(map(str, shards.glob("*.tar")))
    arguments = {
        "paths": names[::-1],  # sorted, as always
        "pattern": [f"{shards}/train-{{000000..000002}}.tar"],
        "folder": [str(shards)],
        "stdin": ["-"],
    }[form]

    output = shards / "spec.json"
    status, out, err = run("create", *arguments, "-o", output, stdin="\n".join(names))

    assert (status, err) == (0, "")
    assert out == f"{output}: 3 shards, 20 samples\n"
    document = json.loads(output.read_text())
    assert (document["name"], document["index"]) == ("train", "spec.index")
    assert [entry["url"] for entry in document["shardlist"]] == [
        f"train-00000{n}.tar" for n in range(3)
    ]
    data = (shards / "train-000001.tar").read_bytes()
    assert document["shardlist"][1] == {
        "url": "train-000001.tar",
        "nsamples": 5,
        "filesize": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    with ShardListDataset(output) as dataset:
        assert dataset.get_by_key("s00011")[".txt"] == "text 11"
    assert run("verify", output)[0] == 0


def test_create_with_old_options(shards: Path) -> None:
    """As ``widsindex create`` took them; the default output is its own too."""
    (shards / "about.txt").write_text("a description")

    status, out, _ = run(
        *("create", "train-000000.tar", "train-000001.tar", "-n", "mine", "-i", "about.txt"),
        *("-b", "https://example.com/data/"),
        cwd=shards,
    )

    assert (status, out) == (0, "shardindex.json: 2 shards, 13 samples\n")
    spec = load_spec(shards / "shardindex.json")
    assert (spec.name, spec.extras["info"]) == ("mine", "a description")
    assert spec.shards[1].url == "https://example.com/data/train-000001.tar"
    assert spec.index == "https://example.com/data/shardindex.index"


def test_create_of_remote_shards(server: Server, shards: Path, tmp_path: Path) -> None:
    """A pattern of URLs; the spec names them as they are."""
    for path in shards.glob("*.tar"):
        server.page(f"/{path.name}", path.read_bytes())
    output = tmp_path / "remote.json"

    status, out, _ = run("create", f"{server.url}/train-{{000000..000002}}.tar", "-o", output)

    assert (status, out) == (0, f"{output}: 3 shards, 20 samples\n")
    with ShardListDataset(output, access="range") as dataset:
        assert dataset[12][".txt"] == "text 12"


def test_an_interrupted_create_goes_on(tmp_path: Path) -> None:
    """Ctrl-C leaves no spec, no pack and no process; the next run reads what is missing."""
    for number in range(40):
        write_tar(tmp_path / f"a-{number:03d}.tar", sample_members(0, 2000))
    output = tmp_path / "a.json"
    command = [sys.executable, "-m", "wids.cli", "create", str(tmp_path), "-o", str(output)]
    process = subprocess.Popen(
        [*command, "-j", "2"], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    journal = tmp_path / "a.partial"
    until_s = time.monotonic() + 60
    while not journal.exists() or journal.stat().st_size < 1000:
        assert time.monotonic() < until_s
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)

    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "wids: interrupted"
    left = {path.name for path in tmp_path.iterdir() if not path.name.endswith(".tar")}
    assert left == {"a.partial"}
    assert run("create", tmp_path, "-o", output)[0] == 0
    assert load_spec(output).shards[39].num_samples == 2000
    assert not journal.exists()


def test_nothing_to_describe(tmp_path: Path) -> None:
    """An empty folder, a missing shard, no shard at all."""
    assert run("create", tmp_path, "-o", tmp_path / "a.json")[0] == 1
    status, out, err = run("create", tmp_path / "missing.tar", "-o", tmp_path / "a.json")
    assert (status, out) == (1, "")
    assert re.fullmatch(r"wids: .*missing\.tar: .*\n", err)
    assert not (tmp_path / "a.json").exists()


# info, sample


def test_info(shards: Path) -> None:
    """For people, for scripts, and as a table."""
    spec = shards / "train.json"
    run("create", shards, "-o", spec)

    text = run("info", spec)[1]
    assert re.search(r"samples +20\n +shards +3\n", text)
    assert re.search(r"^\.txt +100% +6 B$", text, re.MULTILINE), "by the index"
    found = json.loads(run("info", "--json", spec)[1])
    assert (found["name"], found["num_samples"], found["num_shards"]) == ("train", 20, 3)
    assert found["nbytes"] == sum(path.stat().st_size for path in shards.glob("*.tar"))
    table = run("info", "-t", spec, spec)[1].splitlines()
    assert len(table) == 3
    assert table[0].split()[:3] == ["file", "name", "num_samples"]


def test_tables_fit_the_window(shards: Path) -> None:
    """At a terminal of 40 columns no line is longer; the terminal is a real one."""
    spec = shards / "train.json"
    run("create", shards, "-o", spec)
    for arguments in (["info", spec], ["info", "-t", spec], ["sample", spec, "3"]):
        reader, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        env = {name: v for name, v in os.environ.items() if name not in ("COLUMNS", "LINES")}
        command = [sys.executable, "-m", "wids.cli", *map(str, arguments)]
        subprocess.run(command, stdout=terminal, stderr=terminal, env=env, check=True)
        os.close(terminal)
        shown = os.read(reader, 100_000).decode()
        os.close(reader)
        assert max(map(len, shown.splitlines())) <= 40, shown


def test_sample(shards: Path) -> None:
    """By index, negative too, by key, and one field as it is."""
    spec = shards / "train.json"
    run("create", shards, "-o", spec)

    lines = run("sample", spec, 12)[1].splitlines()
    assert lines[0].split(maxsplit=1) == [".txt", "text 12"]
    assert run("sample", spec, "--key", "s00012")[1].splitlines() == lines
    assert run("sample", spec, "--", -8)[1].splitlines() == lines
    assert run("sample", spec)[1].splitlines()[0].split(maxsplit=1) == [".txt", "text 0"]
    assert run("sample", spec, 12, "--cat", ".txt")[1] == "text 12"
    assert run("sample", spec, 12, "-c", "txt")[1] == "text 12"
    assert run("sample", spec, 12, "-r", "-w", 20)[1].splitlines()[0] == ".txt b'text 12'"
    assert "'.txt': b'text 12'" in run("sample", spec, 12, "-p")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["20"], "20"),
        (["--key", "none"], "none"),
        (["1", "--cat", ".jpg"], 'sample "s00001": it has no field .jpg'),
        (["1", "--key", "a"], "found both"),
    ],
)
def test_samples_that_are_not_there(arguments: list[str], message: str, train: Path) -> None:
    """One line, status 1."""
    status, out, err = run("sample", train, *arguments)
    assert (status, out) == (1, "")
    assert err.startswith("wids: ")
    assert message in err
    assert len(err.splitlines()) == 1


def test_output_that_nobody_reads(train: Path) -> None:
    """``wids … | head -1`` shows no traceback."""
    command = f"{sys.executable} -m wids.cli info --json {' '.join([str(train)] * 800)} | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)  # noqa: S602
    assert result.stderr == ""
    assert json.loads(result.stdout)["num_samples"] == 20


# verify, update


def test_verify(shards: Path) -> None:
    """Status 0 and silence on standard output, or 1 and a line for each problem."""
    spec = shards / "train.json"
    run("create", shards, "-o", spec)
    assert run("verify", spec, "--decode") == (
        0,
        "",
        f"{spec}: 3 shards, 20 samples: no problems\n",
    )
    (shards / "train-000001.tar").unlink()

    status, out, _ = run("verify", spec)

    assert status == 1
    assert out == f"{shards}/train-000001.tar: it cannot be read: No such file or directory\n"


def test_update(shards: Path) -> None:
    """What ``widsindex update`` could change; the file as it was stays beside it."""
    spec = shards / "train.json"
    run("create", shards, "-o", spec)
    before = json.loads(spec.read_text())

    assert run("update", spec, "-n", "new", "-i", "text", "-b", "https://h/x/", "-k")[0] == 0
    document = json.loads(spec.read_text())
    assert (document["name"], document["info"], document["keep"]) == ("new", "text", True)
    assert load_spec(spec).shards[0].url == "https://h/x/train-000000.tar"
    assert json.loads((shards / "train.json.bak").read_text()) == before

    run("update", spec, "-K", "--dir", "s3://bucket/a")
    assert json.loads(spec.read_text())["keep"] is False
    assert load_spec(spec).shards[0].url == "s3://bucket/a/train-000000.tar"
    run("update", spec, "--rebase")
    document = json.loads(spec.read_text())
    assert document["base"] == "s3://bucket/a/"
    assert document["shardlist"][0]["url"] == "train-000000.tar"
    run("update", spec, "--nodir", "--base", ".")
    assert load_spec(spec).shards[0].url == str(shards / "train-000000.tar")


def test_update_that_would_break_it(tmp_path: Path) -> None:
    """Shards in several folders have no base in common; the file stays as it is."""
    spec = tmp_path / "a.json"
    spec.write_text(json.dumps({"shardlist": ["x/a.tar", "y/a.tar"]}))
    before = spec.read_text()

    status, _, err = run("update", spec, "--rebase")

    assert (status, spec.read_text()) == (1, before)
    assert "expected all shards in one folder to rebase to, found 2" in err


# prefetch, cache


def test_prefetch_and_cache(server: Server, shards: Path, own_cache: Path) -> None:
    """Shards are fetched up to a limit, shown, checked and cleared."""
    spec = shards / "train.json"
    run("create", shards, "-o", spec, "--base", f"{server.url}/")
    for path in shards.iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    nbytes = (shards / "train-000000.tar").stat().st_size

    status, out, err = run("prefetch", spec, "--limit", 2 * nbytes)
    assert (status, out) == (1, "2 shards are here, 2 of them fetched now\n")
    assert "1 shards do not fit into" in err
    assert run("prefetch", spec)[:2] == (0, "3 shards are here, 1 of them fetched now\n")
    assert Path(own_cache).is_dir()
    shown = run("cache", "show")[1]
    assert shown.count("train-00000") == 6, "each with its index"

    assert run("cache", "check", spec)[::2] == (0, "3 copies of 3 shards checked\n")
    copy = next(path for path in (own_cache / "shards").iterdir() if path.name.endswith("1.tar"))
    data = bytearray(copy.read_bytes())
    data[600] ^= 1
    copy.write_bytes(data)
    status, out, _ = run("cache", "check", spec)
    assert status == 1
    assert out.startswith(f"{copy}: the spec says the sha256")

    assert run("cache", "clear")[1].startswith(f"{own_cache}: deleted 6 files, ")
    assert run("cache", "show")[1].startswith("     0 B  in 0 files in ")
    assert run("cache", "check")[0] == 1


def test_prefetch_of_a_rank(server: Server, shards: Path) -> None:
    """The fixed share of one rank, and no more."""
    spec = shards / "train.json"
    run("create", shards, "-o", spec, "--base", f"{server.url}/")
    for path in shards.iterdir():
        server.page(f"/{path.name}", path.read_bytes())

    assert run("prefetch", spec, "--rank", 0, "--num-replicas", 4)[0] == 0

    asked = {request.path for request in server.log if request.path.endswith(".tar")}
    assert asked == {"/train-000000.tar"}
    assert "expected --rank and --num-replicas together" in run("prefetch", spec, "--rank", 0)[2]


# All of it


def test_from_a_folder_of_files_to_a_verified_dataset(tmp_path: Path) -> None:
    """Two thousand files become shards, spec and pack with two commands, verified with a third."""
    need(shutil.which("split") and shutil.which("tar"), "GNU split and tar")
    files = tmp_path / "files"
    files.mkdir()
    (tmp_path / "shards").mkdir()
    for number in range(1000):
        (files / f"{number:06d}.txt").write_text(f"text {number}")
        (files / f"{number:06d}.cls").write_text(str(number % 10))
    make = (
        "ls files | LC_ALL=C sort | split -l 500 -d -a 6 "
        "--filter='tar -cf shards/$FILE.tar -C files -T -' - train-"
    )
    subprocess.run(make, shell=True, cwd=tmp_path, check=True)  # noqa: S602 - as a user types it

    assert run("create", "shards", "-o", "shards/train.json", cwd=tmp_path)[0] == 0
    assert run("verify", "shards/train.json", cwd=tmp_path)[0] == 0
    with ShardListDataset(tmp_path / "shards" / "train.json") as dataset:
        assert dataset.lengths == [250] * 4
        assert dataset.get_by_key("000777")[".txt"] == "text 777"


def test_the_old_library_reads_the_spec(shards: Path) -> None:
    """Wids 0.1.11, whose interpreter is in ``WIDS_OLD_PYTHON``."""
    old_python = os.environ.get("WIDS_OLD_PYTHON")
    need(old_python, "set WIDS_OLD_PYTHON to an environment with wids==0.1.11")
    spec = shards / "train.json"
    run("create", shards, "-o", spec, "--base", str(shards))
    code = (
        "import sys, wids\n"
        "dataset = wids.ShardListDataset(sys.argv[1], cache_dir=sys.argv[2])\n"
        "print(len(dataset), dataset[12]['.txt'], file=sys.stderr)"
    )

    result = subprocess.run(
        [str(old_python), "-W", "ignore", "-c", code, str(spec), str(shards / "cache")],
        capture_output=True,
        text=True,
        check=True,
    )

    assert result.stderr.splitlines()[-1] == "20 text 12"


def test_it_starts_quickly_and_without_torch(train: Path) -> None:
    """In a fraction of a second; the median of a few starts."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        run("info", train)
        times.append(time.perf_counter() - start)
    code = (
        "import sys; from wids.cli import main; main.main(['info', sys.argv[1]]);"
        "assert not {'torch', 'PIL', 'urllib3'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(train)], capture_output=True, check=True)
    assert min(times) < 0.6, "0.2 s on a machine that is not busy"


def test_progress_is_for_people(
    shards: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bar on standard error, where one is wanted; results alone on standard output."""
    monkeypatch.setattr("wids.files.progress.DELAY_S", 0)
    for wanted, is_shown in (("1", True), ("0", False)):
        monkeypatch.setenv("WIDS_PROGRESS", wanted)
        assert cli.main(["create", str(shards), "-o", str(shards / "a.json"), "-j", "1"]) == 0
        out, err = capsys.readouterr()
        assert out == f"{shards}/a.json: 3 shards, 20 samples\n"
        assert ("reading shards" in err) is is_shown


def test_terminals_get_no_control_characters(tmp_path: Path) -> None:
    """Names in a hostile shard or spec stay on their line, and command nothing."""
    members = [*sample_members(0, 2), ("README\x1b]0;pwn\x07\nsecond", b"")]
    path = write_tar(tmp_path / "a.tar", members)
    status, out, _ = run("verify", path)
    assert (status, len(out.splitlines())) == (1, 1)
    assert "README\\x1b]0;pwn\\x07\\nsecond" in out
    spec = tmp_path / "a.json"
    spec.write_text(json.dumps({"shardlist": [{"url": "x\x1b[2J.tar", "nsamples": 1}]}))
    assert run("sample", spec)[2].isprintable() is False  # its end of line
    assert run("sample", spec)[2].strip().isprintable()
    assert run("info", "--json", spec)[1].strip().isprintable()


def test_downloads_end_with_ctrl_c(server: Server, shards: Path) -> None:
    """Whatever is being fetched, and a server that is slow, are not waited for."""
    spec = shards / "train.json"
    run("create", shards, "-o", spec, "--base", f"{server.url}/")
    for path in shards.iterdir():
        faults = [Fault(after_nbytes=100, how="stall")] * 9 if path.suffix == ".tar" else []
        server.page(f"/{path.name}", path.read_bytes(), faults=faults)
    urls = [f"{server.url}/train-00000{number}.tar" for number in range(3)]
    for arguments in (
        ["prefetch", spec],
        ["verify", spec, "-j2"],
        ["create", *urls, "-j2", "-o", shards / "b.json"],
    ):
        process = subprocess.Popen(
            [sys.executable, "-m", "wids.cli", *map(str, arguments)],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        num_before = len(server.log)
        until_s = time.monotonic() + 30
        while len(server.log) == num_before:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=15)
        assert process.returncode == 130, (arguments, err)


@pytest.mark.parametrize("output", ["a.tar", "a.index", "a"])
def test_outputs_that_would_hit_something_else(output: str, shards: Path) -> None:
    """A spec has a name of its own; a pack and a journal are made from it."""
    status, _, err = run("create", shards, "-o", shards / output)
    assert status == 1
    assert "expected a name that ends in .json" in err
    (shards / "b.partial").write_text("mine")
    assert run("create", shards, "-o", shards / "b.json")[0] == 1
    assert (shards / "b.partial").read_text() == "mine"


def test_bases(shards: Path) -> None:
    """Shards of one name have no base in common; a local base leaves the index where it is."""
    (shards / "x").mkdir()
    shutil.copy(shards / "train-000000.tar", shards / "x")
    names = [shards / "train-000000.tar", shards / "x" / "train-000000.tar"]
    status, _, err = run("create", *names, "-o", shards / "a.json", "-b", "https://h/d/")
    assert status == 1
    assert "found train-000000.tar more than once" in err
    (shards / "specs").mkdir()
    assert run("create", shards, "-o", shards / "specs" / "a.json", "-b", shards)[0] == 0
    assert run("verify", shards / "specs" / "a.json")[0] == 0


def test_names_with_braces(tmp_path: Path) -> None:
    """What a folder has is taken as it is, once."""
    for name in ("w{1,2}.tar", "w{1.tar"):
        write_tar(tmp_path / name, sample_members(0, 2))
    assert run("create", tmp_path, "-o", tmp_path / "a.json")[0] == 0
    assert load_spec(tmp_path / "a.json").shards[0].num_samples == 2
    both = [tmp_path, f"{tmp_path}/."]
    assert "2 shards" in run("create", *both, "-o", tmp_path / "b.json")[1]


def test_update_keeps_the_file_what_it_was(shards: Path) -> None:
    """Its permissions, the link that leads to it, and in .bak its bytes."""
    spec = shards / "train.json"
    run("create", shards, "-o", spec)
    spec.chmod(0o600)
    before = spec.read_bytes()
    link = shards / "link.json"
    link.symlink_to(spec)

    assert run("update", link, "--name", "x")[0] == 0

    assert link.is_symlink()
    assert load_spec(spec).name == "x"
    assert spec.stat().st_mode & 0o777 == 0o600
    assert (shards / "train.json.bak").read_bytes() == before


def test_stdout_of_cat_is_bytes(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field goes out as it is stored."""
    stream = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", stream)
    assert cli.main(["sample", str(train), "3", "--cat", ".txt"]) == 0
    assert stream.buffer.getvalue() == b"text 3"  # type: ignore[attr-defined]
