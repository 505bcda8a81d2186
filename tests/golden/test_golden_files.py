"""Golden files: what each version left on disk is read by every later one, with the same result.

A folder here has the files of one generation of the formats, and the values that they had. The
tests go through all folders, and use public names and the command line only (FORMAT-1).
"""

from __future__ import annotations

import filecmp
import importlib
import json
import logging
import os
import shutil
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kept
import make
import order_cases
import pytest
from conftest import need, optional, raises
from loopback import Server, flipped
from packaging.version import Version

import wids

GENERATIONS = sorted(
    (path for path in Path(__file__).parent.glob("[0-9]*") if path.is_dir()),
    key=lambda path: Version(path.name),
)
NEWEST = GENERATIONS[-1]


def named(folder: Path) -> str:
    return folder.name


@lru_cache
def values(folder: Path) -> dict[str, Any]:
    """Return the values that the files of a generation had."""
    found: dict[str, Any] = json.loads((folder / "values.json").read_text())
    return found


CASES = [
    pytest.param(case, id=f"{folder.name}: {case['name']}")
    for folder in GENERATIONS
    for case in json.loads((folder / "states.json").read_text())
]
"""The states of all generations."""


def each(name: str, places: dict[Path, Any]) -> pytest.MarkDecorator:
    """Run a test for each of some names in each generation, which need not have the same."""
    pairs = [(folder, place) for folder, found in places.items() for place in found]
    ids = [f"{folder.name}: {place}" for folder, place in pairs]
    return pytest.mark.parametrize(("folder", name), pairs, ids=ids, indirect=["folder"])


DATASETS = {folder: list(values(folder)["facts"]) for folder in GENERATIONS}
INDEXED = {
    folder: [name for name in names if name != "published/bare.json"]
    for folder, names in DATASETS.items()
}
"""Those whose spec names a dataset index, or one of each shard."""

LOADERS = {
    folder: range(len(json.loads((folder / "loaders.json").read_text()))) for folder in GENERATIONS
}
DAMAGED = {
    folder: [
        name
        for name in (
            "published/train.json",
            "published/train.index",
            "published/train-000001.tar",
            "odd/gnu.tar",
            "odd/odd.index",
            "headers/headers.index",
            "written/captions.index",
            "packed/out.index",
            "rewritten/new-000000.tar",
        )
        if (folder / name).exists()
    ]
    for folder in GENERATIONS
}


@pytest.fixture(scope="module", params=GENERATIONS, ids=named)
def folder(request: pytest.FixtureRequest) -> Path:
    """A generation."""
    found: Path = request.param
    return found


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a generation, as a user has it on disk; no test changes it."""
    return kept.unpack(folder, tmp_path_factory.mktemp("whole") / folder.name)


# States of samplers.


@pytest.mark.parametrize("case", CASES)
def test_a_state_resumes_where_it_was_saved(case: order_cases.Case) -> None:
    """The next indices and those of the following epoch are those of the version that saved it.

    On each number of ranks that divides the runs (ORDER-9, ORDER-10, ORDER-46).
    """
    assert case["continued"]
    for expected in case["continued"]:
        ranks = expected["num_replicas"], expected["rank"]
        found = json.loads(json.dumps(order_cases.continued(case, *ranks)))
        assert found == expected


@pytest.mark.parametrize("case", CASES)
def test_a_state_of_another_order_is_refused(case: order_cases.Case) -> None:
    """Whichever value of the fingerprint was another, the state is not taken for this order."""
    fingerprint = json.loads(case["state"]["fingerprint"])
    for name, value in fingerprint.items():
        changed = {**case["state"], "fingerprint": json.dumps({**fingerprint, name: [value]})}
        ranks = case["continued"][0]["num_replicas"], 0
        with raises(wids.StateError, name):
            order_cases.restored({**case, "state": changed}, *ranks)


def test_a_position_counts() -> None:
    """A state of another position yields other indices, so that the cases can fail."""
    (case,) = [c.values[0] for c in CASES if c.id == f"{NEWEST.name}: chunks"]
    moved = {**case, "state": {**case["state"], "position": case["state"]["position"] + 1}}
    (expected,) = case["continued"]
    assert (
        order_cases.continued(moved, 1, 0)["next"][: order_cases.NUM_NEXT - 1]
        == expected["next"][1:]
    )


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own business
@each("number", LOADERS)
def test_a_loader_resumes_where_it_was_saved(number: int, folder: Path) -> None:
    """A loader of torchdata, over a stream or a sampler, reads on, with workers and without."""
    optional("torchdata.stateful_dataloader")
    case = json.loads((folder / "loaders.json").read_text())[number]
    assert order_cases.continued_batches(case) == case["continued"]


@pytest.mark.long
def test_lightning_resumes_from_a_checkpoint(folder: Path) -> None:
    """A checkpoint has the state under the name of the callback, and resumes the sampler."""
    optional("lightning")
    callbacks = importlib.import_module("wids")
    case = json.loads((folder / "states.json").read_text())[1]
    sampler = order_cases.made_sampler(case, 1, 0)
    trainer = SimpleNamespace(state=SimpleNamespace(fn="fit"), max_steps=-1)
    checkpoint = {"callbacks": {"SamplerCallback": case["state"]}}
    callbacks.SamplerCallback(sampler).on_load_checkpoint(trainer, None, checkpoint)
    assert list(islice(sampler, order_cases.NUM_NEXT)) == case["continued"][0]["next"]


# Datasets: specs, dataset indexes, indexes, keys.


@each("name", DATASETS)
def test_a_dataset_has_its_samples(
    name: str, folder: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its samples, keys, counts, weights and further entries are those that it had.

    No line in the log says that a dataset index was not used (SPEC-1, SPEC-2, SPEC-44, INDEX-5,
    INDEX-7).
    """
    with caplog.at_level(logging.INFO, "wids"):
        found = kept.facts(whole / name)
    assert json.loads(json.dumps(found)) == values(folder)["facts"][name]
    assert "pack" not in caplog.text
    lines = [
        line for line in caplog.messages if name != "published/bare.json"
    ]  # without a dataset index
    assert not [line for line in lines if "index" in line]


def test_a_list_is_one_dataset(folder: Path, whole: Path) -> None:
    """Specs and tars in a list are one dataset, with their dataset indexes (SPEC-14, SPEC-44)."""
    found = kept.facts([whole / name for name in kept.SEVERAL])
    assert json.loads(json.dumps(found)) == values(folder)["several"]["list"]


@each("name", DATASETS)
def test_a_dataset_has_the_problems_it_had(name: str, folder: Path, whole: Path) -> None:
    """`verify_spec` compares shards with dataset index and spec, and finds what it found."""
    assert kept.problems(whole / name) == values(folder)["problems"][name]


@each("name", INDEXED)
def test_the_dataset_indexes_alone_are_enough_to_read_remote_shards(
    name: str, folder: Path, whole: Path, server: Server
) -> None:
    """With ``access="range"`` a shard without a usable index would be an error."""
    for path in whole.rglob("*"):
        if path.is_file():
            server.page(f"/{path.relative_to(whole).as_posix()}", path.read_bytes())
    found = kept.facts(f"{server.url}/{name}", access="range")
    assert json.loads(json.dumps(found)) == values(folder)["facts"][name]
    tars = [request for request in server.log if request.path.endswith(".tar")]
    assert tars
    assert all(request.range for request in tars)


def test_decoded_fields(folder: Path, whole: Path) -> None:
    """The values of fields are those that they had."""
    assert kept.decoded(whole / "published" / "train.json") == values(folder)["decoded"]


def test_a_saved_table(folder: Path, whole: Path) -> None:
    """Columns, their types and their values are those that were saved (TABLE-13, TABLE-21)."""
    optional("pyarrow")
    assert kept.columns(whole / "table" / "small.json") == values(folder)["columns"]


# What this version writes.


@each("name", {folder: list(kept.RUNS) for folder in GENERATIONS})
def test_shards_of_fixed_input(name: str, folder: Path, tmp_path: Path) -> None:
    """Shards, dataset index and spec have the bytes that they had, whatever wrote them."""
    need(os.path.exists(kept.HERE), "a folder /proc/self/cwd")
    work, result, pattern = kept.RUNS[name]
    with kept.inside(tmp_path):
        work(folder)
    assert kept.digests(tmp_path.glob(pattern)) == kept.digests((folder / result).glob(pattern))


# The cache folder.


@pytest.fixture(params=[True, False], ids=["as it was", "copied later"])
def cache(folder: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A cache folder of a generation, with the times of its files or with those of today."""
    target = tmp_path / "cache"
    shutil.copytree(folder / "cache", target)
    if request.param:
        times = json.loads((folder / "cache_times.json").read_text())
        for name, mtime_ns in times.items():
            os.utime(target / name, ns=(mtime_ns, mtime_ns))
    return target


def test_a_cached_copy_is_used_without_fetching(
    folder: Path, whole: Path, cache: Path, server: Server
) -> None:
    """No byte of a cached shard is requested; where only its index is left, the rest is by range.

    (CACHE-2, CACHE-4, CACHE-35, INDEX-1)
    """
    for path in (whole / "published").iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    expected = values(folder)["facts"]["published/bare.json"]
    first, second, _ = expected["lengths"]
    options: dict[str, Any] = {"transformations": [], "raw": "bytes", "cache_dir": cache}
    url = f"{server.url}/bare.json"
    with wids.ShardListDataset(url, access="range", **options) as dataset:
        assert kept.samples(dataset[:first]) == expected["samples"][:first]
        assert server.requests == ["/bare.json"]
        stop = first + second
        assert kept.samples(dataset[first:stop]) == expected["samples"][first:stop]
        tars = [request for request in server.log if request.path.endswith(".tar")]
        assert {request.path for request in tars} == {"/train-000001.tar"}
        assert all(request.range for request in tars)
        with pytest.raises(wids.FetchError):  # of this one the cache has nothing
            _ = dataset[stop]


def test_records_of_dataset_indexes_are_used(whole: Path, cache: Path) -> None:
    """Dataset indexes have copies and records, by which datasets are joined (CACHE-36)."""
    read: list[str] = []
    options: dict[str, Any] = {
        "handlers": {"golden": kept.opener(whole, read)},
        "cache_dir": cache,
        "transformations": [],
        "raw": "bytes",
    }
    with (
        wids.ShardListDataset("golden://data/published/train.json", **options) as train,
        wids.ShardListDataset("golden://data/written/captions.json", **options) as captions,
    ):
        joined = train.join(captions)
        assert joined.find_key("s001") == 1
        assert set(read) == {"published/train.json", "written/captions.json"}
        sample = dict(joined[1])
        assert sample[".caption.txt"] == b"caption 1"


# Bytes that a format promises.


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    """Shards, dataset indexes and specs are those of the newest generation, byte for byte.

    (PACK-13, REWRITE-7) A format that changes needs a generation of its own.
    """
    need(os.path.exists(kept.HERE), "a folder /proc/self/cwd")
    make.make_datasets(tmp_path / "again")
    made = [path for path in (tmp_path / "again").rglob("*") if path.is_file()]
    assert len(made) > 40
    for path in (path for path in made if path.suffix != ".gz"):  # zlib's bytes are its own
        name = path.relative_to(tmp_path / "again")
        assert filecmp.cmp(path, NEWEST / name, shallow=False), f"{name} has other bytes"


def test_new_states_are_those_of_the_newest_generation() -> None:
    """The samplers of today save what the newest generation has; older states load all the same."""
    stored = json.loads((NEWEST / "states.json").read_text())
    made = json.loads(json.dumps(list(order_cases.recorded_cases())))
    assert [case["continued"] for case in made] == [case["continued"] for case in stored]


# That damage shows.


@each("name", DAMAGED)
def test_a_flipped_bit_shows(
    name: str, folder: Path, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever a bit is flipped, a comparison of these tests or the library notices it.

    (INDEX-3) The tables of keys are left out, which are not needed.
    """
    top = name.partition("/")[0]
    shutil.copytree(whole / top, tmp_path / top)
    path = tmp_path / name
    content = path.read_bytes()
    specs = [spec for spec in values(folder)["facts"] if spec.startswith(f"{top}/")]
    stop = _keys_start(content) if path.suffix == ".index" else len(content)
    caplog.set_level(logging.INFO, "wids")
    for place in range(9, stop, max(1, stop // 7)):
        path.write_bytes(flipped(content, place))
        differs = [_differs(tmp_path / spec, folder, spec, caplog) for spec in specs]
        assert any(differs), f"byte {place}"


def _differs(spec: Path, folder: Path, name: str, caplog: pytest.LogCaptureFixture) -> bool:
    """Whether a dataset is not what it was: an error, a line in the log, samples, or a problem."""
    caplog.clear()
    try:
        found = json.loads(json.dumps(kept.facts(spec)))
        return bool(
            "index" in caplog.text
            or found != values(folder)["facts"][name]
            or kept.problems(spec) != values(folder)["problems"][name]
        )
    except (wids.WidsError, OSError, ValueError):
        return True


def test_a_flipped_bit_of_a_shards_own_dataset_index_shows(whole: Path, server: Server) -> None:
    """Its index is not used, and without an index nothing is read by range (INDEX-3)."""
    for path in (whole / "published").iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    name = "own-000000.index"
    content = (whole / "published" / name).read_bytes()
    stop = _keys_start(content)
    for place in range(9, stop, stop // 7):
        server.page(f"/{name}", flipped(content, place))
        with pytest.raises(wids.FetchError):
            kept.facts(f"{server.url}/own.json", access="range")


def _keys_start(dataset_index: bytes) -> int:
    """Return where the tables of keys begin: without them, keys are searched for."""
    return int.from_bytes(dataset_index[64:72], "little")


def test_a_flipped_bit_of_a_table_shows(folder: Path, whole: Path, tmp_path: Path) -> None:
    """Damage in the columns or the footer is an error (TABLE-21)."""
    optional("pyarrow")
    shutil.copytree(whole / "table", tmp_path / "table")
    path = tmp_path / "table" / "small.parquet"
    content = path.read_bytes()
    for place in range(20, len(content), len(content) // 7):
        path.write_bytes(flipped(content, place))
        with pytest.raises(wids.TableError):
            assert kept.columns(tmp_path / "table" / "small.json") != values(folder)["columns"]


def test_a_flipped_bit_of_the_cache_shows(
    folder: Path, whole: Path, cache: Path, server: Server
) -> None:
    """A damaged copy, or a damaged index of it, is not used as it is (CACHE-35, INDEX-3)."""
    for path in (whole / "published").iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    expected = values(folder)["facts"]["published/bare.json"]["samples"][0]
    (copy,) = cache.rglob("*train-000000.tar")
    for path, place in ((copy, 530), (copy.with_name(copy.name + ".index"), 200)):
        path.write_bytes(flipped(path.read_bytes(), place))
    with wids.ShardListDataset(
        f"{server.url}/bare.json", cache_dir=cache, transformations=[], raw="bytes"
    ) as dataset:
        assert kept.samples(islice(dataset, 1)) == [expected]
    assert "/train-000000.tar" in server.requests
