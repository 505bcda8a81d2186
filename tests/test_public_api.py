"""What ``import wids`` promises, and what it must not do."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import wids


def test_all_is_sorted_and_complete() -> None:
    """Each public name exists, once, and ``dir`` lists nothing else."""
    assert wids.__all__ == sorted(set(wids.__all__))
    assert all(getattr(wids, name) is not None for name in wids.__all__)
    assert dir(wids) == wids.__all__


def test_errors_are_all_public() -> None:
    """A program that catches an error finds its class at the top level."""
    from wids import errors

    names = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert names <= set(wids.__all__)


def test_no_public_name_is_a_module() -> None:
    """``wids.X`` is never ambiguous between a module and a public name."""
    modules = {path.stem for path in Path(wids.__file__).parent.iterdir()}
    assert not modules & set(wids.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    """A misspelt name is reported as for any module."""
    with pytest.raises(AttributeError, match="'wids' has no attribute 'ShardDataset'"):
        _ = wids.ShardDataset


OLD_MODULES = (
    *("wids", "wids_bench", "wids_cleanup", "wids_decode", "wids_dir", "wids_dl", "wids_index"),
    *("wids_lru", "wids_mmtar", "wids_specs", "wids_tar"),
)


@pytest.mark.parametrize("name", OLD_MODULES)
@pytest.mark.parametrize(
    "statement",
    ["import wids.{0}", "from wids.{0} import anything", "from wids import {0}", "wids.{0}.x"],
)
def test_module_of_the_old_library_names_its_replacement(statement: str, name: str) -> None:
    """Every way to reach an old module fails with the replacement and the page of migration."""
    replacement = r"(wids\.[a-zA-Z_]+|ShardListDataset\(|tests/benchmarks)"
    with pytest.raises(
        (ImportError, AttributeError), match=rf"use {replacement}.*docs/migration\.md"
    ):
        exec(statement.format(name), {"wids": wids})  # noqa: S102


def test_missing_module_is_reported_as_usual() -> None:
    """A module that no wids ever had fails with Python's own message."""
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'wids\.nothing'$"):
        import wids.nothing  # noqa: F401


def test_version_is_the_installed_one() -> None:
    """The version has one source."""
    assert wids.__version__ == version("wids")


def run_python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, "HOME": str(cwd)},
        capture_output=True,
        text=True,
        check=True,
    )


def test_import_does_nothing(tmp_path: Path) -> None:
    """Importing prints nothing, creates no file, and loads neither torch nor Pillow nor numpy."""
    code = "import sys, wids; assert not {'torch', 'PIL', 'numpy'} & set(sys.modules)"

    result = run_python(code, tmp_path)

    assert (result.stdout, result.stderr) == ("", "")
    assert list(tmp_path.rglob("*")) == []


def test_browsing_imports_no_torch(train: Path) -> None:
    """A dataset is opened and a sample decoded without torch, HTTP client or demo."""
    code = (
        "import sys, wids\n"
        f"dataset = wids.ShardListDataset({str(train)!r})\n"
        "assert dataset[3]['.txt'] == 'text 3'\n"
        "print(*sorted({'torch', 'urllib3'} & set(sys.modules)))"
    )

    assert run_python(code, train.parent).stdout.strip() == ""
