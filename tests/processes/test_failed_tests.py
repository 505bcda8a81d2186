"""`.ci/tests`: tests that fail run once more, alone."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import pytest

TODAY = datetime.now(tz=timezone.utc).date()
SCRIPT = Path(__file__).parents[2] / ".ci" / "tests"
TESTS = """
import os
import pathlib
import pytest


def test_unreliable():
    seen = pathlib.Path("seen")
    if not seen.exists():
        seen.touch()
        pytest.fail("the first time")


@pytest.mark.parametrize("n", range(int(os.environ["NUM_BAD"])))
def test_bad(n):
    pytest.fail("always")
"""

pytestmark = pytest.mark.skipif(
    not SCRIPT.exists() or shutil.which("bash") is None, reason="a checkout and bash"
)


def run(
    root: Path, folder: str = "processes", num_bad: int = 0, listed: str = ""
) -> tuple[int, list[str], str]:
    """Return the status, the tests that were repeated, and what was noted as unreliable."""
    path = root / "tests" / folder / "test_it.py"
    path.parent.mkdir(parents=True)
    path.write_text(TESTS)
    (root / "tests" / "unreliable.txt").write_text(f"# comment\n{listed}")
    unreliable = root / "unreliable"
    env = {**os.environ, "NUM_BAD": str(num_bad), "UNRELIABLE": str(unreliable)}
    env.pop("PYTEST_ADDOPTS", None)
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they take longer to import than the tests
    command = [sys.executable, "-m", "pytest", "-p", "xdist.plugin", "-v", "--rootdir", str(root)]
    done = subprocess.run(
        [str(SCRIPT), *command],
        cwd=root,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    second = done.stdout.partition("+ once more, alone:")[2]
    repeated = [name for name in ("test_unreliable", "test_bad[0]") if f"{name} " in second]
    return done.returncode, repeated, unreliable.read_text() if unreliable.exists() else ""


@pytest.mark.parametrize(
    ("num_bad", "status", "repeated"),
    [
        (0, 0, ["test_unreliable"]),
        pytest.param(1, 1, ["test_unreliable", "test_bad[0]"], marks=pytest.mark.long),
        pytest.param(3, 1, [], marks=pytest.mark.long),
    ],
)
def test_up_to_three_run_once_more(
    tmp_path: Path, num_bad: int, status: int, repeated: list[str]
) -> None:
    """A run is good if its few failures pass alone; others, and many of them, fail it."""
    found, again, noted = run(tmp_path, num_bad=num_bad)
    assert (found, again) == (status, repeated)
    assert bool(noted) == (status == 0)


@pytest.mark.parametrize(
    "folder",
    [
        "storage",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("simulation", "property")),
    ],
)
def test_only_tests_of_processes_run_once_more(tmp_path: Path, folder: str) -> None:
    """Any other test that fails fails the run, though it would pass alone."""
    assert run(tmp_path, folder) == (1, [], "")


@pytest.mark.parametrize(("age", "status"), [(29, 1), (30, 0)])
def test_an_unreliable_test_is_mended(tmp_path: Path, age: int, status: int) -> None:
    """A test that is in the list within 30 days fails the run; what is noted can be listed."""
    name = "tests/processes/test_it.py::test_unreliable"
    then = TODAY - timedelta(days=age)
    found, _, noted = run(tmp_path, listed=f"{then} {name}\n")
    assert found == status
    assert noted == ("" if status else f"{TODAY} {name}\n")


def test_no_test_is_listed_twice_within_30_days() -> None:
    """One that is has to be mended before anything else."""
    text = (SCRIPT.parents[1] / "tests" / "unreliable.txt").read_text(encoding="utf-8")
    lines = [line.split(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    found = sorted((name, date.fromisoformat(day)) for day, name in lines)
    pairs = [(a, b) for a, b in itertools.pairwise(found) if a[0] == b[0]]
    assert [a for a, b in pairs if (b[1] - a[1]).days < 30] == []
