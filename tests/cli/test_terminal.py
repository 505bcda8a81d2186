"""What people see in a terminal: bars, columns of wide characters, next steps, one-line errors."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from command import run
from conftest import write_tar

from wids.cli import demo_command
from wids.look.text import bar_text, padded, shortened, table, text_width
from wids.storage.cache.cache_names import dataset_pattern


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A dataset of eight samples with Japanese captions, half of them with a class."""
    members = []
    for number in range(8):
        members.append((f"{number:04d}.txt", f"猫が{number}匹".encode()))
        if number % 2:
            members.append((f"{number:04d}.cls", b"%d" % (number**2)))
    write_tar(tmp_path / "neko.tar", members)
    run("create", tmp_path, "-o", tmp_path / "neko.json")
    return tmp_path / "neko.json"


def test_numbers_and_keys(spec: Path) -> None:
    """``wids sample SPEC`` takes a number as Python writes it, and a key otherwise."""

    def key(*arguments: object) -> str:
        return re.findall(r"__key__ +(\S+)", run("sample", spec, *arguments)[1])[0]

    assert key(3) == key("0003") == key("--key", "0003") == "0003"
    assert key() == key(0) == "0000"
    assert key("--", -1) == "0007"
    assert run("sample", spec, "cat")[2].count("\n") == 1
    assert "cat" in run("sample", spec, "cat")[2]
    assert run("sample", spec, "17")[0] == 1
    assert "found both" in run("sample", spec, "3", "--key", "0003")[2]


def test_info_has_bars(spec: Path) -> None:
    """Each field has a bar of its share, and each column of a saved table one of its values."""
    saved = spec.with_name("t.parquet")
    assert run("table", spec, "-c", "n=.cls,text=.txt", "-o", saved)[0] == 0
    lines = run("info", spec)[1].splitlines()
    fields = {line.split()[0]: line for line in lines if line.startswith(".")}
    assert fields[".txt"].endswith("100%  ██████████")
    assert fields[".cls"].endswith(" 50%  █████")
    columns = lines[-4:]
    assert columns[0].split() == ["column", "type", "least", "most"]
    assert re.fullmatch(r"n +int64 +1 +█.{10}█ +49", columns[1])
    assert re.fullmatch(r"text +string +█{8} +8 different", columns[2])
    assert columns[3] == "(--columns shows more)"


def test_info_without_its_table(spec: Path) -> None:
    """A table that is gone or stale, or whose package is missing, is not an error of ``info``."""
    saved = spec.with_name("t.parquet")
    run("table", spec, "-c", "n=.cls", "-o", saved)
    saved.write_bytes(b"no parquet")
    assert run("info", spec)[0] == 0
    saved.unlink()
    status, out, err = run("info", spec)
    assert (status, err) == (0, "")
    assert "column" not in out


def test_missing_packages_are_one_line(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command whose extra is not installed names it, without a traceback."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    status, _, err = run("table", spec, "-c", "n=.cls", "-o", spec.with_name("t.parquet"))
    assert status == 1
    assert err.count("\n") == 1
    assert "pyarrow" in err


@pytest.mark.parametrize(
    "command",
    [
        *("info NONE", "sample NONE", "sample NONE 3", "verify NONE", "update NONE", "browse NONE"),
        *("prefetch NONE", "cache check NONE", "cache show NONE", "create none.tar"),
        *("rewrite NONE out", "table NONE -c a=.cls -o t.parquet", "pack none -o out"),
    ],
)
def test_missing_files_are_one_line(command: str, tmp_path: Path) -> None:
    """A file that is not there is one line that names it, whatever the command."""
    arguments = command.replace("NONE", "none.json").split()
    status, out, err = run(*arguments, cwd=tmp_path)
    assert (status, out) == (1, "")
    assert err.startswith("wids: ")
    assert "none" in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_missing_shard_is_one_line(spec: Path) -> None:
    """So is a shard that the spec names and that was moved away."""
    spec.with_name("neko.tar").unlink()
    for arguments in (["sample", spec, 3], ["verify", spec], ["info", spec, "--columns", "n=.cls"]):
        status, out, err = run(*arguments)
        assert status == 1
        assert (out + err).count("neko.tar") >= 1
        assert len((out + err).splitlines()) <= 2
        assert "Traceback" not in err


def test_the_demo_ends_with_commands(spec: Path) -> None:
    """What to do next are commands that run as they are printed."""
    lines = [
        line.partition("#")[0].split() for line in demo_command._next_steps(str(spec)).splitlines()
    ]
    commands = [line[1:] for line in lines if line[:1] == ["wids"]]
    assert [command[0] for command in commands] == ["browse", "info", "sample", "pack"]
    commands[2][2] = "3"  # the demo has more samples
    for command in commands[1:3]:
        assert run(*command)[0] == 0
    assert "'my folder/x.json'" in demo_command._next_steps("my folder/x.json")


def test_wide_characters_take_two_columns() -> None:
    """Chinese, Japanese and Korean align in tables, and are cut where the window ends."""
    texts = ("cat", "猫", "ﾈｺ", "고양이", "🐈", "é", "e\u0301", "")
    assert [text_width(text) for text in texts] == [3, 2, 2, 6, 2, 1, 1, 0]
    assert [padded(text, 4) + "|" for text in ("a", "猫", "猫猫")] == ["a   |", "猫  |", "猫猫|"]
    lines = table(["name", "n"], [("猫", 1), ("dog", 22)]).splitlines()
    assert lines == ["name  n", "猫    1", "dog   22"]
    assert shortened("猫猫猫猫", 8) == "猫猫猫猫"
    assert shortened("猫猫猫猫", 7) == shortened("猫猫猫猫猫", 7) == "猫猫猫…"
    assert shortened("猫猫猫猫", 6) == "猫猫…"
    assert shortened("abcdef", 4) == "abc…"
    assert shortened("abcdef", 6) == "abcdef"
    for width in range(1, 12):
        for text in ("a猫b猫c", "猫" * 9, "cafe\u0301 " * 3, "x" * 20):
            assert text_width(shortened(text, width)) <= width


def test_samples_fit_the_window(spec: Path) -> None:
    """A line of a sample is at most as wide as the window, in columns and not in characters."""
    lines = run("sample", spec, 3, "-w", 40)[1].splitlines()
    assert lines[0].split(maxsplit=1) == [".txt", "猫が3匹"]
    assert all(text_width(line) <= 40 for line in lines)


def test_bars() -> None:
    """A bar has steps of an eighth; only nothing has none, and only all is full."""
    assert [bar_text(share, 2) for share in (0, 0.001, 0.5, 0.75, 0.999, 1)] == [
        *("", "▏", "█", "█▌", "██", "██")
    ]
    assert bar_text(1 / 16, 2) == "▏"


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("0" * 32 + "-train-000017.tar", "train-*.tar"),
        ("0" * 32 + "-train-000017.tar.index", "train-*.tar"),
        ("." + "0" * 32 + "-train-000017.tar." + "a" * 16 + ".tmp", "train-*.tar"),
        ("0" * 32 + "-cc3m-train-0017.tar", "cc3m-train-*.tar"),
        ("0" * 32 + "-file", "file"),
        ("0" * 32 + "-a1.idx", "a*.idx"),
    ],
)
def test_copies_are_grouped_by_name(name: str, pattern: str) -> None:
    """The copies of one dataset's shards, their indexes and unfinished ones have one pattern."""
    assert dataset_pattern(name) == pattern


def test_json_stays_json(spec: Path) -> None:
    """Bars are for people: scripts get what they got."""
    assert set(json.loads(run("info", "--json", spec)[1])) >= {"file", "num_samples", "nbytes"}


@pytest.mark.parametrize(
    ("variables", "has_colour"),
    [
        ({"TERM": "xterm"}, True),
        pytest.param({"TERM": "xterm", "NO_COLOR": "1"}, False, marks=pytest.mark.long),
        pytest.param({}, False, marks=pytest.mark.long),
    ],
)
def test_colours(variables: dict[str, str], has_colour: bool, spec: Path) -> None:
    """A terminal has colours if it can show them and NO_COLOR is not set; pipes have none."""
    reader, terminal = pytest.importorskip("pty").openpty()
    env = {name: v for name, v in os.environ.items() if name not in ("TERM", "NO_COLOR")}
    for arguments in (["sample", spec, "3"], ["sample", spec, "none"]):
        command = [sys.executable, "-m", "wids", *map(str, arguments)]
        subprocess.run(
            command, stdout=terminal, stderr=terminal, env={**env, **variables}, check=False
        )
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # at the end
        while piece := os.read(reader, 100_000):  # may return what was written first
            shown += piece
    os.close(reader)
    assert (b"\x1b[1m.txt\x1b[0m" in shown) == has_colour
    assert (b"\x1b[31mwids:\x1b[0m" in shown) == has_colour
    assert "\x1b" not in run("sample", spec, "3")[1]


def test_a_port_in_use_is_named(spec: Path) -> None:
    """The error of `wids browse` names the port; numbers that are none are wrong usage."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, out, err = run("browse", spec, "--port", port)
    assert (status, out) == (1, "")
    assert err == (
        f"wids: port {port}: expected one that is free, found Address already in use; choose "
        "another (--port), or none, for a free one\n"
    )
    assert run("browse", spec, "--port", 70_000)[0] == 2


def test_numbers_end_at_one_place() -> None:
    """Columns of numbers are aligned at their ends, with their header."""
    text = table(
        ["n", "size", "name"], [("1", "9 B", "a"), ("1,200", "10.5 kB", "b")], right=(0, 1)
    )
    assert text.splitlines() == [
        "    n     size  name",
        "    1      9 B  a",
        "1,200  10.5 kB  b",
    ]


@pytest.mark.long
def test_browse_says_how_to_reach_it(spec: Path) -> None:
    """The address is on this machine; a tunnel leads to its port from another one."""
    command = [sys.executable, "-m", "wids", "browse", str(spec)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            port = re.findall(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())[0]
            here, there = process.stderr.readline(), process.stderr.readline()
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
    assert process.returncode == 0
    assert "from this machine; press Ctrl-C to stop" in here
    assert f"ssh -N -L {port}:127.0.0.1:{port} {socket.gethostname()}" in there
