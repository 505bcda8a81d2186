"""Every Python block of README and docs runs, and their links lead to files."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from conftest import need
from loopback import Server
from pages import BLOCKS, ON_CLUSTERS, PAGES, PYTHON, ROOT, Block
from PIL import Image

import wids
from wids.cli import demo_command
from wids.cli.main import main

HERE = [block for block in PYTHON if block not in ON_CLUSTERS]
# Processes take seconds to start, and transformers to import: blocks of docs with them are long.
LONG = [
    block
    for block in PYTHON
    if block.page != "README.md" and re.search("num_workers|subprocess|transformers", block.code)
]
# It leaves the shards that it has read to the garbage collector.
STREAMS = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
TORCHDATA = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
LINKING = [*PAGES, *sorted((ROOT / "specs").rglob("*.md")), *sorted(ROOT.glob("C*.md"))]


def test_every_block_has_a_language_that_is_checked() -> None:
    """No block escapes under another name.

    bash and console run in test_shell_blocks.py, and nginx in processes/test_cluster_cache.py.
    """
    directives = {"{toctree}", "{eval-rst}", "{include}"}
    others = {"bash", "console", "json", "nginx"} | directives
    wrong = [block for block in BLOCKS if block.language not in {"python", *others}]
    assert [f"{block.page}:{block.line} is {block.language!r}" for block in wrong] == []
    assert len(PYTHON) > 30
    for block in BLOCKS:
        if block.language == "json":
            json.loads(block.code)


def files_of(block: Block) -> set[str]:
    """Return the files of its folder that a block names."""
    return set(re.findall(r'"([\w{}-]+\.(?:json|tar))"', block.code))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    spec = demo_command.write_dataset(str(folder / "wids-demo"))
    # As the command on the page of tables does.
    output = str(folder / "wids-demo" / "shapes.parquet")
    main(["table", spec, "--columns", "label=.cls,caption=.txt", "--output", output])
    return folder


@pytest.fixture
def folder(demo: Path, tmp_path: Path) -> Path:
    """A copy for one test: another may run in another process."""
    shutil.copytree(demo, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(
            block,
            marks=[
                *[pytest.mark.long] * (block in LONG),
                *[STREAMS] * ("wds.WebDataset([" in block.code),
                *[TORCHDATA] * ("torchtitan" in block.code),
            ],
        )
        for block in HERE
    ],
    ids=lambda block: f"{block.page}:{block.line}",
)
def test_python_block_runs(
    block: Block,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: Server,
    request: pytest.FixtureRequest,
) -> None:
    """A block runs unchanged beside the demo's dataset, which example.com serves too.

    Earlier blocks of its page that name the same files run first.
    """
    if "num_workers" in block.code:  # others could not import it
        request.getfixturevalue("forked")
    monkeypatch.chdir(folder)
    for path in (folder / "wids-demo").iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    earlier = [
        each
        for each in HERE
        if each.page == block.page
        and each.line < block.line
        and each not in LONG
        # Which they have made; a name in braces may be any.
        and (files_of(each) & files_of(block) or any("{" in name for name in files_of(block)))
    ]
    for each in [*earlier, block]:
        code = each.code.replace("https://example.com", server.url)
        for package in re.findall(r"^\s*(?:import|from) (\w+)", code, re.MULTILINE):
            need(importlib.util.find_spec(package), f"pip install {package}")
        # A fresh namespace, as if the block were typed into a new file and that were run.
        exec(compile(code, f"{each.page}:{each.line}", "exec"), {"__name__": "__main__"})  # noqa: S102


@pytest.mark.long
@pytest.mark.parametrize(
    "block",
    [block for block in HERE if re.search("num_workers|ProcessPool", block.code)],
    ids=lambda block: f"{block.page}:{block.line}",
)
def test_blocks_with_workers_are_programs(block: Block, folder: Path, server: Server) -> None:
    """They run as files where workers are not forked, as on Linux since Python 3.14."""
    for path in (folder / "wids-demo").iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    begin = 'import multiprocessing\nmultiprocessing.set_start_method("forkserver", force=True)\n'
    code = block.code.replace("https://example.com", server.url)
    (folder / "block.py").write_text(begin + code, encoding="utf-8")
    subprocess.run([sys.executable, "block.py"], cwd=folder, check=True)


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page: Path) -> None:
    """Relative links name files that exist, and others are URLs with a host."""
    without_code = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
    text = without_code.sub("", page.read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)\s]+)\)|\b(?:src|srcset|href)=\"([^\"]+)\"", text)
    for link in map("".join, links):
        path, _, _ = link.partition("#")
        url = urlsplit(link)
        if url.scheme:
            assert url.scheme in {"https", "mailto"}, link
            assert "." in url.netloc, link
        elif path:
            assert (page.parent / path).exists(), link


def test_pages_look_right_on_github_too() -> None:
    """They have no attributes of images, which GitHub shows as text; the site needs none."""
    assert [page.name for page in PAGES if "){." in page.read_text(encoding="utf-8")] == []


def test_messages_on_the_page_of_errors_are_raised() -> None:
    """Each message in its tables is in the code, with anything in place of …."""
    texts = []
    for path in (ROOT / "wids").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [
                    str(part.value) if isinstance(part, ast.Constant) else "…"
                    for part in node.values
                ]
                texts.append("".join(parts))
            elif isinstance(node, ast.Constant):
                texts.append(re.sub("%[sdr]", "…", str(node.value)))
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]*)`", page, re.MULTILINE)
    assert len(messages) > 10
    for message in messages:
        parts = message.split("…")
        assert any(_has_in_order(text, parts) for text in texts), message


def _has_in_order(text: str, parts: list[str]) -> bool:
    at = 0
    for part in parts:
        at = text.find(part, at) + len(part)
        if at < len(part):
            return False
    return True


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


def test_numbers_of_readme_are_those_of_the_report() -> None:
    """The table of README is made from the numbers of the report's last run."""
    need(importlib.util.find_spec("reporting"), "run the tests in a clone, with benchmarks/")
    from reporting import tables
    from reporting.runs import Results

    numbers = ROOT / "docs" / "performance" / "results.json"
    results = Results(**json.loads(numbers.read_text(encoding="utf-8")))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert f"\n\n{tables.front_table(results)}\n" in readme
    (num_rows,) = re.findall(r"in each of (\d+) rows", tables.report(results))
    assert f"has {num_rows} rows with ranges" in readme


def test_the_recipe_for_the_hub_calls_what_its_client_has() -> None:
    """Each call of the recipe that publishes a folder fits a method of the installed client."""
    need(importlib.util.find_spec("huggingface_hub"), "pip install huggingface_hub")
    import huggingface_hub

    (code,) = [block.code for block in PYTHON if "huggingface_hub.HfApi()" in block.code]
    calls = [
        node
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("api.")
    ]
    assert len(calls) == 2
    for call in calls:
        method = getattr(huggingface_hub.HfApi, ast.unparse(call.func).removeprefix("api."))
        names = {word.arg: word.value for word in call.keywords if word.arg}
        inspect.signature(method).bind(None, *call.args, **names)


def test_what_pip_installs_without_a_clone_is_said_once() -> None:
    """README says which library has this name on PyPI now, and no other page does."""
    saying = re.compile(
        r"until version 1\.0 is released|\bold library of (?:that|this|the same) name",
        re.IGNORECASE,
    )
    pages = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    assert [name for name, text in pages.items() if saying.search(text)] == ["README.md"]


def test_the_changelog_is_no_diary() -> None:
    """What changed for users is read in two minutes: at most 60 lines."""
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()) <= 60


def loop_of_readme() -> str:
    """Return the code of the training loop of README."""
    (code,) = [block.code for block in PYTHON if "def resize" in block.code and is_readme(block)]
    return code


def is_readme(block: Block) -> bool:
    return block.page == "README.md"


def test_the_report_measures_the_loop_of_readme() -> None:
    """What is fast in the loop is what the report's program does, and the other way round."""
    peer = (ROOT / "benchmarks" / "peers" / "wids.py").read_text(encoding="utf-8")
    pictures = peer.partition("def pictures")[2].partition("    def ")[0]
    for code in (loop_of_readme(), pictures):
        for part in ('"torchrgb8"', "fields=", ".to_tuple(", "wids.DistributedChunkedSampler"):
            assert part in code
        assert "collate_fn=wids.collate" in code
        assert "32" in code or "PICTURES_AT_A_TIME" in code


@pytest.mark.long
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("endings", [["jpg"], ["jpg", "png", "webp"]], ids=" ".join)
def test_the_loop_of_readme_takes_any_pictures(
    endings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures of several sizes, modes and formats, packed from class folders, train in it."""
    monkeypatch.chdir(tmp_path)
    for number in range(40):
        ending = endings[number % len(endings)]
        mode, size = ("L", "RGB", "CMYK")[number % 3], (20 + number, 90 - number)
        path = tmp_path / "photos" / ("cat" if number % 2 else "dog") / f"{number}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode if ending == "jpg" else "RGBA", size).save(path)
    assert main(["pack", "photos", "-o", "wids-demo/shapes"]) == 0
    code = loop_of_readme()
    if len(endings) > 1:
        several = '(".jpg;.png;.webp", ".cls")'
        assert f"`to_tuple{several}`, without `fields`" in (ROOT / "README.md").read_text("utf-8")
        code = code.replace('(".jpg", ".cls")', several).replace(', fields=[".jpg", ".cls"]', "")
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})  # noqa: S102


def test_the_index_of_the_interface_has_all_names() -> None:
    """Every public name is in the table of docs/api/index.md, which links to it."""
    page = (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8")
    names = {name for name in wids.__all__ if not name.startswith("_")}
    assert set(re.findall(r"`~wids\.(\w+)`", page)) == names
