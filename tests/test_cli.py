"""The ``wids`` command: parse, call, print."""

from __future__ import annotations

from importlib.metadata import entry_points, version

import pytest

from wids import SpecError, cli, demo


def test_both_names_are_installed() -> None:
    """``widsindex`` is the name that users know."""
    scripts = {e.name: e.value for e in entry_points(group="console_scripts")}
    assert scripts["wids"] == scripts["widsindex"] == "wids.cli:main"


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
