"""The commands on the pages of the documentation run, and print what the pages show."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from loopback import Server
from pages import BLOCKS, ROOT
from PIL import Image

import wids
from wids.cli import demo_command

if TYPE_CHECKING:
    from s3 import Bucket

pytestmark = pytest.mark.long
PAGES_WITH_COMMANDS = sorted(
    {block.page for block in BLOCKS if block.language in {"bash", "console"}}
)
# `wids browse` runs until it is interrupted, which is what Ctrl-C does here after its first line.
BROWSE = """#!/bin/bash
if [ "$1" != browse ]; then exec {python} -m wids "$@"; fi
coproc {{ exec {python} -u -m wids "$@"; }}
while read -r line <&"${{COPROC[0]}}"; do
    echo "$line"
    case "$line" in *http://127.0.0.1:*) kill -INT "$COPROC_PID"; wait "$COPROC_PID"; exit 0;; esac
done
exit 1
"""


def runs_elsewhere(line: str) -> bool:
    """Whether .ci/run has a line's installation, or test_examples.py trains what it starts."""
    return re.search(r"\bpip install\b|^torchrun .*examples/", line) is not None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with all that pages speak of: the demo, photos, shards, a package."""
    demo_command.write_dataset(str(tmp_path / "wids-demo"))
    (tmp_path / "shards").mkdir()
    for path in (tmp_path / "wids-demo").glob("*.tar"):
        shutil.copy(path, tmp_path / "shards" / path.name.replace("shapes", "train"))
    for parent in ("photos", "split/train", "split/test"):
        for name in ("cat", "dog"):
            (tmp_path / parent / name).mkdir(parents=True)
            for n in range(3):
                picture = Image.new("RGB", (64, 48), (len(parent), 80 * n, 99))
                picture.save(tmp_path / parent / name / f"{n}.jpg")
    with wids.TarWriter(str(tmp_path / "more-000000.tar")) as writer:
        writer.write({"__key__": "more", ".txt": "more", ".cls": 1, ".jpg": np.zeros((8, 8, 3))})
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "resize.py").write_text(
        "def smaller(sample):\n    return {**sample, '.txt': sample['.txt'][:3]}\n"
    )
    return tmp_path


@pytest.fixture
def environment(folder: Path, bucket: Bucket) -> dict[str, str]:
    """Return the variables of a shell whose ``wids`` is this tree, with a bucket of shards."""
    programs = folder / ".programs"
    programs.mkdir()
    (programs / "wids").write_text(BROWSE.format(python=sys.executable))
    (programs / "wids").chmod(0o755)
    for path in (folder / "shards").glob("*.tar"):
        bucket.system.put(str(path), f"{bucket.name}/train/{path.name}")
    bucket.system.put(str(folder / "more-000000.tar"), f"{bucket.name}/new/more-000000.tar")
    options = {f"{bucket.url}/": bucket.options}
    return {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{folder}",
        "WIDS_STORAGE_OPTIONS": json.dumps(options),
    }


def pattern_of(expected: str) -> str:
    """Return the pattern of an output in which … stands for any text, and alone for any lines."""
    lines = expected.split("\n")[:-1]
    texts = [r"(?:.*\n)*?" if line == "…" else re.escape(line) + r"\n?" for line in lines]
    return "".join(texts).replace("…", ".*?")


@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS)
def test_commands_run_in_order(
    page: str, folder: Path, environment: dict[str, str], bucket: Bucket, server: Server
) -> None:
    """The commands of a page end without an error, one after another, and print what it shows."""
    for path in (folder / "wids-demo").iterdir():
        server.page(f"/{path.name}", path.read_bytes())
        server.page(f"/{path.name.replace('shapes', 'train')}", path.read_bytes())
    for block in BLOCKS:
        if block.page != page or block.language not in {"bash", "console"}:
            continue
        code = block.code.replace("https://example.com", server.url)
        code = code.replace("s3://bucket", bucket.url)
        if block.language == "bash":
            steps = [("\n".join(x for x in code.split("\n") if not runs_elsewhere(x)), None)]
            steps = [(text, None) for text, _ in steps if text.strip() and "OLD/" not in text]
        else:
            parts = re.split(r"^\$ ", code, flags=re.MULTILINE)
            assert parts[0] == "", f"{block.page}:{block.line} begins without a command"
            steps = [tuple(part.split("\n", 1)) for part in parts[1:]]
        for command, expected in steps:
            result = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                check=False,
                timeout=120,
            )
            place = f"{block.page}:{block.line}: {command}"
            shown = result.stdout + result.stderr
            if expected is None:
                assert result.returncode == 0, f"{place}\n{shown}"
            else:
                shown = shown.replace(server.url, "https://example.com")
                assert re.fullmatch(pattern_of(expected), shown), f"{place}\n{shown}"


def test_extras_have_lower_bounds() -> None:
    """Without them pip may choose versions that are years old."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    text = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    for requirement in re.findall(r'"([\w-][^"]*)"', text):
        assert ">=" in requirement or requirement.startswith("wids["), requirement


def test_what_pages_install_and_measure_exists() -> None:
    """The extras in ``pip install 'wids[…]'`` and the programs that pages name are in this tree."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    text = text.partition("[project.optional-dependencies]")[2]
    extras = re.findall(r"^([\w-]+) = \[", text, re.MULTILINE)
    for block in BLOCKS:
        if block.language in {"bash", "console"}:
            for names in re.findall(r"(?:wids|\.)\[([\w,]+)\]", block.code):
                assert set(names.split(",")) <= set(extras), f"{block.page}:{block.line}"
            for name in re.findall(r"\b(?:tests|examples)/[\w/]+\.py\b", block.code):
                assert (ROOT / name).exists(), f"{block.page}:{block.line}"
