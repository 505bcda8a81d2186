"""Every Python block of the README runs, and its links and commands hold."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from conftest import need
from loopback import Server

from wids import demo

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]


def test_every_block_has_a_language_that_is_checked() -> None:
    """No block escapes by another name: Python is run here, bash is run by CI."""
    assert {language for language, _ in BLOCKS} == {"python", "bash"}
    assert len(PYTHON) == README.count("\n```python\n") > 3
    assert len(BLOCKS) - len(PYTHON) == 4, "install, test, measure; make and verify, in tests/cli"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    demo.write_dataset(str(folder / "wids-demo"))
    return folder


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python_block_runs(
    number: int, folder: Path, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    """A block runs as it stands, beside the demo's dataset, which example.com has too."""
    monkeypatch.chdir(folder)
    for path in (folder / "wids-demo").iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    code = PYTHON[number].replace("https://example.com", server.url)
    has_accelerate = importlib.util.find_spec("accelerate")
    need("accelerate" not in code or has_accelerate, "pip install accelerate")
    # A module of its own, as if it were typed into a new file.
    exec(compile(code, f"README block {number}", "exec"), {"__name__": "readme"})  # noqa: S102


def test_links_lead_somewhere() -> None:
    """Relative links name files that are there."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_old_names_are_all_mapped() -> None:
    """The table has every name that users of the old library touch."""
    table = README[README.index("## Moving over") :]
    old = """
    ShardListDataset ChunkedSampler DistributedChunkedSampler ShardedSampler IndexedTarSamples
    LRUShards ShardListSampler compute_num_samples compute_file_md5sum group_by_key splitname
    default_decoder default_localname cache_localname MMIndexedTar names by_name by_index get_file
    get_at_index get_by_name keep_while_reading download_file download_and_open recent_downloads
    load_dsdesc_and_resolve urldir keep_most_recent_files shards lengths cum_lengths total_length
    transformations cache cache.lru cache_dir base spec dataset_name get_stats() get_shard(i)
    ranges seed shuffle shufflefirst epoch rng WIDS_CACHE WIDS_VERBOSE WIDS_VERBOSE_CMD
    """
    assert [
        name for name in old.split() if f"{name}`" not in table and f"{name}(" not in table
    ] == []
