"""The parser of the ``wids`` command, its errors, and its output as a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest
from command import run, write_bare_shards
from conftest import sample_members, write_tar

from wids import SpecError
from wids.cli import demo_command
from wids.cli import main as cli

COMMANDS = [
    *("pack", "create", "info", "sample", "verify", "update"),
    *("browse", "prefetch", "cache", "demo", "bench", "order"),
]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of three shards without a spec."""
    return write_bare_shards(tmp_path)


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


def test_the_bare_name_prints_the_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``wids`` alone has the output of ``wids --help``, and status 0."""
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])
    expected = capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["wids"])
    assert cli.main() == 0
    found = capsys.readouterr()
    assert (found.out, found.err) == (expected, "")
    assert all(f"\n    {command} " in found.out for command in COMMANDS)


@pytest.mark.parametrize("arguments", [["nonsense"], ["demo", "--nonsense"]])
def test_wrong_usage_is_status_two(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Usage errors go to standard error."""
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "usage: wids" in captured.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["rewrite", "a", "b", "--fields", "jpg", "--fields", "cls"],
        ["create", "a", "-o", "a.json", "--output", "a.json"],
        ["create", "a", "--part", "1/2", "--part", "2/2"],
        ["pack", "a", "--classes", "--no-classes"],
        ["verify", "a", "-j", "1", "-j", "2"],
        ["browse", "a", "--port", "1", "--port", "2"],
    ],
)
def test_an_option_is_given_once(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """No value of a repeated option is dropped without a word."""
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    error = capsys.readouterr().err
    assert "expected once, found again" in error or "not allowed with argument" in error


def test_errors_of_the_library_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user sees the message, not a traceback, and status 1."""

    def fail(folder: str) -> str:
        raise SpecError(f"{folder}: no")

    monkeypatch.setattr(demo_command, "write_dataset", fail)

    assert cli.main(["demo", "x"]) == 1
    assert capsys.readouterr().err == "wids: x: no\n"


def test_folder_that_cannot_be_written_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """An error of the operating system is one line too, which names what was expected."""
    for folder in ("/proc/nothing", "/proc", "/dev/null/x", ""):
        assert cli.main(["demo", folder]) == 1
        error = capsys.readouterr().err
        assert f"wids: {folder or repr('')}: expected a folder to write a dataset to" in error
        assert "Errno" not in error
        assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    "command",
    ["info", "create", "sample", "verify", "update", "table", "rewrite", "browse", "prefetch"],
)
def test_an_empty_name_is_not_the_current_folder(
    command: str, train: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable of the shell that is not set is an error, and no dataset."""
    monkeypatch.chdir(train.parent)
    others = {
        "create": ["-o", "x.json"],
        "rewrite": ["out/x"],
        "table": ["-c", ".cls", "-o", "x.parquet"],
    }
    status, out, err = run(command, "", *others.get(command, []))
    assert (status, out) == (1, "")
    assert "expected a path, URL or pattern, found an empty text" in err
    assert not [path for path in train.parent.iterdir() if path.name.startswith(("x", "out"))]


@pytest.mark.parametrize("arguments", [["cache", "show", ""], ["pack", "", "-o", "x"]])
def test_empty_names_of_other_things(arguments: list[str]) -> None:
    """So are those of a spec whose copies are shown, and of a folder to pack."""
    status, out, err = run(*arguments)
    assert (status, out, "found an empty text" in err) == (1, "", True)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Help says what a command does and ends with an example."""
    with pytest.raises(SystemExit, match="0"):
        cli.main([command, "--help"])
    text = capsys.readouterr().out
    assert f"example:\n  wids {command} " in text or f"example:\n  wids {command}\n" in text
    assert all(len(line) <= 90 for line in text.splitlines())


def test_output_that_is_not_read_to_its_end(train: Path) -> None:
    """``wids … | head -1`` shows no traceback."""
    command = f"{sys.executable} -m wids info --json {' '.join([str(train)] * 800)} | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)  # noqa: S602
    assert result.stderr == ""
    assert json.loads(result.stdout)["num_samples"] == 20


def processor_s(*command: str) -> float:
    """Return the least seconds of processor that a process takes, of three."""
    times = []
    for _ in range(3):
        start = os.times()
        subprocess.run([sys.executable, *command], capture_output=True, check=True)
        done = os.times()
        user_s, system_s = start.children_user, start.children_system
        times.append(done.children_user + done.children_system - user_s - system_s)
    return min(times)


def test_start_is_quick_and_without_torch(train: Path) -> None:
    """A start takes four times as long as one that imports numpy at most (2.5 times found)."""
    info = processor_s("-m", "wids", "info", str(train))
    assert info < 4 * processor_s("-c", "import numpy")
    code = (
        "import sys; from wids.cli import main; main.main(['info', sys.argv[1]]);"
        "assert not {'torch', 'PIL', 'http.client'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(train)], capture_output=True, check=True)


def test_help_imports_one_command_and_no_numpy() -> None:
    """Help, and a mistake in an argument, cost no import of the library (decision 0057)."""
    code = (
        "import sys; from wids.cli import main\n"
        "for command in sys.argv[1:]:\n"
        "    try: main.main([command, '--help'] if command else ['--help'])\n"
        "    except SystemExit: pass\n"
        "    found = {name for name in sys.modules if name.endswith('_command')}\n"
        "    assert found == ({f'wids.cli.{command}_command'} if command else set()), found\n"
        "    for name in found: del sys.modules[name]\n"
        "assert 'numpy' not in sys.modules"
    )
    arguments = [sys.executable, "-c", code, "", *COMMANDS, "table", "rewrite"]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_progress_goes_to_standard_error(
    shards: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bar is shown on standard error if wanted; standard output has the results alone."""
    monkeypatch.setattr("wids.storage.progress.DELAY_S", 0)
    for wanted, is_shown in (("1", True), ("0", False)):
        monkeypatch.setenv("WIDS_PROGRESS", wanted)
        assert cli.main(["create", str(shards), "-o", str(shards / "a.json"), "-j", "1"]) == 0
        out, err = capsys.readouterr()
        assert out == f"{shards}/a.json: 3 shards, 20 samples\n"
        assert ("reading shards" in err) is is_shown


def test_terminals_get_no_control_characters(tmp_path: Path) -> None:
    """Names in a hostile shard or spec stay on their line and cannot control the terminal."""
    members = [*sample_members(0, 2), ("README\x1b]0;pwn\x07\nsecond", b"")]
    path = write_tar(tmp_path / "a.tar", members)
    status, out, _ = run("verify", path)
    assert (status, len(out.splitlines())) == (1, 1)
    assert "README\\x1b]0;pwn\\x07\\nsecond" in out
    spec = tmp_path / "a.json"
    spec.write_text(json.dumps({"shardlist": [{"url": "x\x1b[2J.tar", "nsamples": 1}]}))
    assert run("sample", spec)[2].isprintable() is False  # the end of the line
    assert run("sample", spec)[2].strip().isprintable()
    assert run("info", "--json", spec)[1].strip().isprintable()
