"""`.ci/tests`: tests that fail run once more, alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("num_bad", "status", "repeated"),
    [(0, 0, ["test_unreliable"]), (1, 1, ["test_unreliable", "test_bad[0]"]), (3, 1, [])],
)
def test_up_to_three_run_once_more(
    tmp_path: Path, num_bad: int, status: int, repeated: list[str]
) -> None:
    """A run is good if its few failures pass alone; others, and many of them, fail it."""
    (tmp_path / "test_it.py").write_text(TESTS)
    unreliable = tmp_path / "unreliable"
    env = {**os.environ, "NUM_BAD": str(num_bad), "UNRELIABLE": str(unreliable)}
    env.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [str(SCRIPT), sys.executable, "-m", "pytest", "-v"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    second = done.stdout.partition("+ once more, alone:")[2]
    assert [name for name in ("test_unreliable", "test_bad[0]") if f"{name} " in second] == repeated
    is_unreliable = unreliable.exists() and "test_unreliable" in unreliable.read_text()
    assert is_unreliable == (status == 0)
