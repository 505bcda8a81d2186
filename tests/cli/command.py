"""What the tests of commands share: running one as a user does, and shards to run it on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conftest import write_shards


def run(
    *arguments: object, stdin: str | None = None, cwd: Path | None = None
) -> tuple[int, str, str]:
    """Run the command as a user does; return status, output and errors."""
    result = subprocess.run(
        [sys.executable, "-m", "wids.cli", *map(str, arguments)],
        input=stdin,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout, result.stderr


def write_bare_shards(folder: Path) -> Path:
    """Write shards of 8, 5 and 7 samples without a spec; return their folder."""
    write_shards(folder, [8, 5, 7]).unlink()
    return folder
