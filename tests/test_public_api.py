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
    assert all(getattr(wids, name) is getattr(errors, name) for name in names)


def test_names_that_left_the_list_can_be_imported() -> None:
    """What functions return, and a former name of an error, work as before, also as imports."""
    names = {"LostTaskError", "PackReport", "Problem", "RewriteError", "SamplingCost"}
    assert not names & set(wids.__all__)
    for name in names:
        assert isinstance(getattr(wids, name), type)
        exec(f"from wids import {name}")  # noqa: S102


def test_errors_of_new_shards_are_one_class() -> None:
    """Whoever caught errors of `rewrite` or `pack_folder` by their names catches them."""
    assert wids.RewriteError is wids.PackError


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
    replacement = r"(wids\.[a-zA-Z_]+|ShardListDataset\(|benchmarks/)"
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


def test_reading_imports_only_what_it_uses(train: Path) -> None:
    """A local sample is read without the modules for remote shards, pictures, keys or orders."""
    code = (
        "import sys, numpy\n"
        "others = set(sys.modules)\n"  # such as subprocess, with Python 3.10
        "import wids\n"
        f"dataset = wids.ShardListDataset({str(train)!r}, transformations=[])\n"
        "dataset[3], dataset.__getitems__([1, 2])\n"
        "print(*sorted(set(sys.modules) - others))"
    )
    for tar in train.parent.glob("*.tar"):
        os.utime(tar, (1e9, 1e9))  # old enough for its index to be stored
    run_python(code, train.parent)  # makes the indexes

    modules = set(run_python(code, train.parent).stdout.split())

    used = {name.removeprefix("wids.") for name in modules if name.startswith("wids.")}
    packages = {name.partition(".")[0] for name in used}
    assert packages <= {"dataset", "errors", "migration", "shards", "storage"}
    # Each takes half a millisecond of the start. More lead to a full garbage collection: 80 ms
    # beside torch.
    assert len(used) < 85
    others = {"PIL", "torch", "simplejpeg", "fsspec", "braceexpand", "tqdm", "filelock"}
    others |= {"multiprocessing", "subprocess", "html", "http", "ssl", "zipfile"}
    assert not modules & others


def test_browsing_imports_no_torch(train: Path) -> None:
    """A dataset is opened and a sample decoded without torch, HTTP client or demo."""
    code = (
        "import sys, wids\n"
        f"dataset = wids.ShardListDataset({str(train)!r})\n"
        "assert dataset[3]['.txt'] == 'text 3'\n"
        "print(*sorted({'torch', 'ssl', 'http.client'} & set(sys.modules)))"
    )

    assert run_python(code, train.parent).stdout.strip() == ""


@pytest.mark.long
def test_threads_use_names_that_need_torch_at_once(tmp_path: Path) -> None:
    """Threads may be the first to use samplers and ``collate``, all at once, and import torch."""
    code = (
        "import threading, wids\n"
        "names = ['ChunkedSampler', 'DistributedChunkedSampler', 'Prefetcher', 'stream']\n"
        "names += ['sampling_cost', 'MixedSampler', 'BucketBatchSampler']\n"
        "calls = [lambda name=name: getattr(wids, name) for name in names]\n"
        "calls.append(lambda: wids.collate([{'a': 1}]))\n"
        "start, used = threading.Barrier(len(calls)), []\n"
        "def use(call):\n"
        "    start.wait()\n"
        "    used.append(call())\n"
        "threads = [threading.Thread(target=use, args=(call,)) for call in calls]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
        "print(len(used))"
    )

    assert run_python(code, tmp_path).stdout == "8\n"
