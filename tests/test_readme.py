"""Every Python block of README and docs runs, and their links lead to files."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from conftest import need
from loopback import Server

from wids import demo
from wids.cli.main import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    (page.name, language, code)
    for page in PAGES
    for language, code in re.findall(
        r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
]
PYTHON = [(name, code) for name, language, code in BLOCKS if language == "python"]


def test_every_block_has_a_language_that_is_checked() -> None:
    """No block escapes under another name: Python runs here, bash runs in CI."""
    assert {language for _, language, _ in BLOCKS} == {"python", "bash"}
    fences = sum(page.read_text(encoding="utf-8").count("\n```python\n") for page in PAGES)
    assert len(PYTHON) == fences > 3
    assert len(BLOCKS) - len(PYTHON) == 12, "install, test, measure; others in tests/cli"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    spec = demo.write_dataset(str(folder / "wids-demo"))
    # As the command on the page of tables does.
    output = str(folder / "wids-demo" / "shapes.parquet")
    main(["table", spec, "--columns", "label=.cls,caption=.txt", "--output", output])
    return folder


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python_block_runs(
    number: int, folder: Path, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    """A block runs unchanged beside the demo's dataset, which example.com serves too."""
    monkeypatch.chdir(folder)
    for path in (folder / "wids-demo").iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    page, code = PYTHON[number]
    code = code.replace("https://example.com", server.url)
    has_accelerate = importlib.util.find_spec("accelerate")
    need("accelerate" not in code or has_accelerate, "pip install accelerate")
    # A fresh namespace, as if the block were typed into a new file.
    exec(compile(code, f"{page} block {number}", "exec"), {"__name__": "readme"})  # noqa: S102


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    """Relative links name files that exist."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_old_names_are_all_mapped() -> None:
    """The table of docs/migration.md has every name that users of the old library touch."""
    table = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
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
