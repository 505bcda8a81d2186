"""`rewrite`: any view becomes shards of its samples in its order, byte for byte."""

from __future__ import annotations

import doctest
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import raises, write_shards, write_tar
from hypothesis import given, settings
from hypothesis import strategies as st

import wids
from wids import RewriteError, ShardListDataset, TransformError
from wids.publish import rewriting
from wids.publish.new_shard import Publishing
from wids.publish.rewriting import rewrite
from wids.publish.rewriting.rewrite_plan import Order, SomeSamples
from wids.publish.rewriting.rewritten_shard import RewriteTask, rewrite_shard


def members(folder: Path, name: str = "new") -> list[list[tuple[str, bytes]]]:
    """Read the members of all shards of a written dataset with the standard library."""
    shards = []
    for entry in json.loads((folder / f"{name}.json").read_text())["shardlist"]:
        with tarfile.open(folder / entry["url"]) as archive:
            shards.append([(m.name, archive.extractfile(m).read()) for m in archive])  # type: ignore[union-attr]
    return shards


def numbers(shards: list[list[tuple[str, bytes]]]) -> list[list[int]]:
    return [[int(n[1:6]) for n, _ in shard if n.endswith(".txt")] for shard in shards]


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(any),
    seed=st.integers(0, 99),
    share=st.floats(0.1, 1),
    maxcount=st.integers(1, 8),
)
def test_any_view_is_written_in_its_order(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    seed: int,
    share: float,
    maxcount: int,
) -> None:
    """Sorted, shuffled or filtered: plain Python over the same tars finds the same."""
    folder = tmp_path_factory.mktemp("rewrite")
    spec = write_shards(folder, lengths)
    order = list(range(sum(lengths)))
    random.Random(seed).shuffle(order)
    order = order[: max(1, round(share * len(order)))]
    with ShardListDataset(spec) as dataset:
        written = wids.rewrite(dataset[order], folder / "out" / "new-%06d.tar", maxcount=maxcount)

    shards = members(folder / "out")
    assert numbers(shards) == [order[at : at + maxcount] for at in range(0, len(order), maxcount)]
    for shard in shards:
        for name, data in shard:
            number = int(name[1:6])
            expected = f"text {number}" if name.endswith(".txt") else str(number % 10)
            assert data == expected.encode()
    assert wids.verify_spec(folder / "out" / "new.json") == []
    with ShardListDataset(folder / "out" / "new.json") as dataset:
        assert [sample["__key__"] for sample in dataset] == [f"s{n:05d}" for n in order]
        assert dataset.spec.shards == written.shards


def test_concatenated_and_cut_by_size(tmp_path: Path) -> None:
    """Two datasets become one, in shards of at most the length that was asked for."""
    for name, start in (("a", 0), ("b", 50)):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "x.tar"
        write_tar(path, [(f"s{n:05d}.txt", bytes(1000)) for n in range(start, start + 50)])
    with ShardListDataset([tmp_path / "a" / "x.tar", tmp_path / "b" / "x.tar"]) as dataset:
        spec = wids.rewrite(dataset, tmp_path / "new-%06d.tar", maxsize=40_960, name="both")
    assert [number for shard in numbers(members(tmp_path)) for number in shard] == list(range(100))
    assert all((shard.nbytes or 0) <= 40_960 for shard in spec.shards)
    assert len(spec.shards) == 5, "25 samples of 1536 bytes and the end"
    assert json.loads((tmp_path / "new.json").read_text())["name"] == "both"


def test_only_some_fields(tmp_path: Path) -> None:
    """A dataset of some fields is written with these fields."""
    with ShardListDataset(write_shards(tmp_path, [3]), fields=["cls"]) as dataset:
        wids.rewrite(dataset, tmp_path / "new-%06d.tar")
    assert [name for name, _ in members(tmp_path)[0]] == [f"s{n:05d}.cls" for n in range(3)]


def split(sample: dict[str, Any]) -> Any:
    """Leave out every third sample, double every fourth, and change all others."""
    index = sample["__index__"]
    if index % 3 == 0:
        return None
    if index % 4 == 0:
        return [{"__key__": f"{sample['__key__']}{c}", ".txt": sample[".txt"]} for c in "ab"]
    return {**sample, ".txt": sample[".txt"].upper(), ".json": {"n": index}}


def test_a_map_returns_none_one_or_several(tmp_path: Path) -> None:
    """Limits count what goes in; a shard without samples is left out."""
    with ShardListDataset(write_shards(tmp_path, [7, 6])) as dataset:
        spec = wids.rewrite(dataset, tmp_path / "new-%06d.tar", maxcount=1, map=split)
    found = {name: data for shard in members(tmp_path) for name, data in shard}
    assert [shard.num_samples for shard in spec.shards] == [1, 1, 2, 1, 1, 2, 1, 1]
    assert "s00003.txt" not in found
    assert (found["s00004a.txt"], found["s00004b.txt"]) == (b"text 4", b"text 4")
    assert (found["s00005.txt"], found["s00005.json"]) == (b"TEXT 5", b'{"n": 5}')
    assert wids.verify_spec(tmp_path / "new.json") == []


def test_maps_that_fail_or_return_something_else(tmp_path: Path) -> None:
    """The sample is named; others go on if the dataset's ``on_error`` says so."""

    def picky(sample: dict[str, Any]) -> Any:
        return {**sample, ".cls": 1 // (sample["__index__"] - 2)}

    with ShardListDataset(write_shards(tmp_path, [5])) as dataset:
        with raises(wids.TransformError, '"s00002" (index 2)', "ZeroDivisionError"):
            wids.rewrite(dataset, tmp_path / "a" / "new-%06d.tar", map=picky)
        assert os.listdir(tmp_path / "a") == []
        with raises(wids.TransformError, 'train-000000.tar: sample "s00000"', "keep the key"):
            wids.rewrite(dataset, tmp_path / "c" / "new-%06d.tar", map=lambda _: {".txt": "x"})
        with raises(RewriteError, 'key "k"', "(index 0)", "(index 1)"):
            wids.rewrite(
                dataset, tmp_path / "d" / "new-%06d.tar", map=lambda s: {**s, "__key__": "k"}
            )
        dataset.on_error = "skip"
        with pytest.warns(UserWarning, match="left out"):
            wids.rewrite(dataset, tmp_path / "e" / "new-%06d.tar", map=picky)
    assert numbers(members(tmp_path / "e")) == [[0, 1, 3, 4]]


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        (5, "found int 5;"),
        ("text", "found str 'text';"),
        ([{"__key__": "a", ".txt": "a"}, 5], "found int 5 in a list;"),
        ([{".txt": "a"}], '"__key__", found None;'),
    ],
)
def test_what_is_not_a_sample_is_an_error_of_its_input(
    tmp_path: Path, returned: Any, found: str
) -> None:
    """Sample and shard are named, and ``on_error`` decides, as where a map raises."""

    def odd(sample: dict[str, Any]) -> Any:
        return returned if sample["__index__"] == 2 else sample

    with ShardListDataset(write_shards(tmp_path, [5])) as dataset:
        place = 'train-000000.tar: sample "s00002" (index 2): expected map= to return'
        with raises(wids.TransformError, place, found):
            wids.rewrite(dataset, tmp_path / "a" / "new-%06d.tar", map=odd)
        dataset.on_error = "skip"
        with pytest.warns(UserWarning, match="left out"):
            wids.rewrite(dataset, tmp_path / "b" / "new-%06d.tar", map=odd)
    assert numbers(members(tmp_path / "b")) == [[0, 1, 3, 4]]


def test_a_generator_that_raises_is_an_error_of_its_input(tmp_path: Path) -> None:
    """What a map yields is a sample each; what it raises meanwhile names the input."""

    def several(sample: dict[str, Any]) -> Any:
        yield {"__key__": sample["__key__"], ".txt": sample[".txt"]}
        if sample["__index__"] == 2:
            raise ZeroDivisionError

    with (
        ShardListDataset(write_shards(tmp_path, [5])) as dataset,
        raises(wids.TransformError, 'sample "s00002" (index 2)', "ZeroDivisionError"),
    ):
        wids.rewrite(dataset, tmp_path / "new-%06d.tar", map=several)


@pytest.mark.parametrize(
    ("name", "options", "found"),
    [
        ("s1.cls", {"fields": ["txt"]}, 'sample "s1": expected at least one field to write'),
        ("s1.a.cls", {"key_split": "last"}, "sample 's1.a': expected a key without a dot"),
    ],
)
def test_samples_that_cannot_be_stored(tmp_path: Path, name: str, options: Any, found: str) -> None:
    """The error names the shard of the input and the index of the sample."""
    source = write_tar(tmp_path / "old.tar", [("s0.txt", b"0"), (name, b"1")])
    with (
        ShardListDataset(source, **options) as dataset,
        raises(RewriteError, "old.tar (index 1): ", found),
    ):
        wids.rewrite(dataset, tmp_path / "new-%06d.tar")


def test_a_value_without_an_encoding_names_its_input(tmp_path: Path) -> None:
    """Also where the map returns a sample without any labels."""

    def odd(sample: dict[str, Any]) -> Any:
        return {"__key__": "k", ".cls": object()} if sample["__index__"] == 2 else None

    with (
        ShardListDataset(write_shards(tmp_path, [5])) as dataset,
        raises(RewriteError, "train-000000.tar (index 2): sample 'k': ", ".cls", "object"),
    ):
        wids.rewrite(dataset, tmp_path / "new-%06d.tar", map=odd)


def test_repeated_keys_are_an_error_unless_renamed(tmp_path: Path) -> None:
    """Two samples of a key in one shard would become one; the plan names both."""
    for name in "ab":
        (tmp_path / name).mkdir()
        write_shards(tmp_path / name, [4])
    specs = [tmp_path / name / "train.json" for name in "ab"]
    with ShardListDataset(specs) as dataset:
        with raises(
            RewriteError, 'key "s00000"', "a/train-000000.tar (index 0)", "(index 4)", "rename="
        ):
            wids.rewrite(dataset, tmp_path / "out" / "new-%06d.tar")
        assert not (tmp_path / "out").exists()

        def renamed(labels: dict[str, Any]) -> str:
            return f"{labels['__index__'] // 4}/{labels['__key__']}"

        wids.rewrite(dataset, tmp_path / "out" / "new-%06d.tar", rename=renamed)
        with ShardListDataset(tmp_path / "out" / "new.json") as new:
            assert list(new.keys()) == [f"{i}/s{n:05d}" for i in (0, 1) for n in range(4)]
        # In different shards the same keys are no error.
        wids.rewrite(dataset, tmp_path / "two" / "new-%06d.tar", maxcount=4)
        with raises(RewriteError, 'key "x"'):
            wids.rewrite(dataset, tmp_path / "x" / "new-%06d.tar", rename=lambda _: "x")


def test_the_input_and_other_datasets_are_safe(tmp_path: Path) -> None:
    """The output is not the input, and an existing dataset is not overwritten (REWRITE-6)."""
    spec = write_shards(tmp_path, [3, 3])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with ShardListDataset(spec) as dataset:
        with raises(RewriteError, "expected another output than the input"):
            wids.rewrite(dataset, tmp_path / "train-%06d.tar")
        wids.rewrite(dataset, tmp_path / "new-%06d.tar")
        with raises(FileExistsError, "already exists"):
            wids.rewrite(dataset[:2], tmp_path / "new-%06d.tar")
        for maxcount in (0, 1.5, float("nan")):
            with raises(ValueError, "maxcount: expected an integer of at least 1"):
                wids.rewrite(dataset, tmp_path / "other-%06d.tar", maxcount=maxcount)
        with raises(ValueError, "pattern: expected"):
            wids.rewrite(dataset, tmp_path / "other.tar")
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_executors_write_the_same_bytes(tmp_path: Path, pool: Any) -> None:
    """Each shard is a task of its own, on any executor (REWRITE-7)."""
    with ShardListDataset(write_shards(tmp_path, [9, 8, 7])) as dataset:
        view = dataset[::-1]
        wids.rewrite(view, tmp_path / "one" / "new-%06d.tar", maxcount=5)
        with pool(2) as executor:
            wids.rewrite(view, tmp_path / "two" / "new-%06d.tar", maxcount=5, executor=executor)
    names = sorted(os.listdir(tmp_path / "one"))
    assert names == sorted(os.listdir(tmp_path / "two"))
    assert len(names) == 7
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


PROGRAM = """
import sys, time, wids
from pathlib import Path
def waiting(sample):
    # The next shard has begun, and the program waits for its end.
    while len(list(OUT.parent.glob("*.tar"))) >= MOST and sample["__index__"] % 3 == 0:
        time.sleep(0.005)
    return sample
OUT, MOST = Path(sys.argv[2]), int(sys.argv[3])
dataset = wids.ShardListDataset(sys.argv[1], transformations=[])
wids.rewrite(dataset[::-1], OUT, maxcount=10, map=waiting, version="1")
"""


@pytest.mark.long
def test_killed_at_any_point_and_resumed(tmp_path: Path) -> None:
    """Complete shards are not written again, and the bytes are those of one run (REWRITE-8)."""
    spec = write_shards(tmp_path, [40, 41])
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def start(out: str, most: int) -> subprocess.Popen[bytes]:
        pattern = str(tmp_path / out / "new-%06d.tar")
        return subprocess.Popen([sys.executable, str(program), str(spec), pattern, str(most)])

    with start("whole", 100) as job:
        assert job.wait(120) == 0
    folder = tmp_path / "killed"
    kept: dict[str, int] = {}
    for count in (1, 3, 6, 100):
        with start("killed", count) as job:
            until_s = time.monotonic() + 120
            while job.poll() is None:
                assert time.monotonic() < until_s
                if len(list(folder.glob("new-*.tar"))) >= count:
                    job.send_signal(signal.SIGKILL)
                time.sleep(0.005)
        assert (folder / "new.json").exists() == (count == 100)
        for name, mtime_ns in kept.items():
            assert (folder / name).stat().st_mtime_ns == mtime_ns
        # The last one may have been published and not noted: it is written again, the same.
        journaled = sorted(path.name for path in folder.glob("new-*.tar"))[:-1]
        kept = {name: (folder / name).stat().st_mtime_ns for name in journaled}
    assert job.returncode == 0
    whole = tmp_path / "whole"
    assert sorted(os.listdir(folder)) == sorted(os.listdir(whole))
    for path in whole.iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()


def test_a_shard_that_changed_since_is_left_alone(tmp_path: Path) -> None:
    """An output shard with other bytes than it had is an error that says what to do (REWRITE-8)."""

    def failing(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["__index__"] == 5 and not changed.exists():
            raise ValueError("stop")
        return sample

    pattern, changed = tmp_path / "out" / "new-%06d.tar", tmp_path / "changed"
    shard = tmp_path / "out" / "new-000000.tar"
    with ShardListDataset(write_shards(tmp_path, [7]), transformations=[]) as dataset:
        with raises(TransformError, "stop"):
            wids.rewrite(dataset, pattern, maxcount=2, map=failing, version="1")
        complete = shard.read_bytes()
        shard.write_bytes(complete + bytes(512))
        changed.touch()
        with raises(FileExistsError, "new-000000.tar: expected no file", "move it away and run"):
            wids.rewrite(dataset, pattern, maxcount=2, map=failing, version="1")
        assert shard.read_bytes() == complete + bytes(512)
        shard.rename(tmp_path / "moved.tar")
        spec = wids.rewrite(dataset, pattern, maxcount=2, map=failing, version="1")
        assert len(spec.shards) == 4
    assert shard.read_bytes() == complete


def test_another_view_does_not_resume(tmp_path: Path) -> None:
    """An interrupted run of other samples is refused, until ``resume=False`` (REWRITE-8)."""

    def failing(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["__index__"] == 5:
            raise KeyboardInterrupt
        return sample

    pattern = tmp_path / "out" / "new-%06d.tar"
    with ShardListDataset(write_shards(tmp_path, [9])) as dataset:
        with pytest.raises(KeyboardInterrupt):
            wids.rewrite(dataset, pattern, maxcount=2, map=failing)
        with raises(FileExistsError, "interrupted run"):
            wids.rewrite(dataset[::-1], pattern, maxcount=2)
        wids.rewrite(dataset[::-1], pattern, maxcount=2, resume=False)
    assert numbers(members(tmp_path / "out")) == [[8, 7], [6, 5], [4, 3], [2, 1], [0]]


REASONS = [1]


def stopping(sample: dict[str, Any]) -> dict[str, Any]:
    """Stop in the second shard of two samples, while there is a reason."""
    if REASONS and sample["__index__"] == 2:
        raise KeyboardInterrupt
    return sample


def test_a_source_that_was_written_again_does_not_resume(tmp_path: Path) -> None:
    """The identity of shards and the values of a join are compared (REWRITE-8)."""
    source = write_shards(tmp_path, [4])
    keys = [f"s{number:05d}" for number in range(4)]

    def run(value: str) -> None:
        with ShardListDataset(source) as dataset:
            joined = dataset.join(dict.fromkeys(keys, value), prefix="v")
            pattern = tmp_path / "out" / "new-%06d.tar"
            wids.rewrite(joined, pattern, maxcount=2, map=stopping, version="1")

    with pytest.raises(KeyboardInterrupt):
        run("one")
    with raises(FileExistsError, "interrupted run"):
        run("two")
    with pytest.raises(KeyboardInterrupt):
        run("one")
    tar = tmp_path / "train-000000.tar"
    data = tar.read_bytes()
    tar.write_bytes(data.replace(b"text 0", b"TEXT 0"))
    with raises(FileExistsError, "interrupted run"):
        run("one")


def test_joined_fields_are_written(tmp_path: Path) -> None:
    """Bytes of both sides are copied, and values of rows are encoded."""
    for name, field in (("a", "json"), ("b", "mask.json")):
        members = [(f"k{n}.{field}", b'{ "n" :%d}' % n) for n in range(4)]
        write_tar(tmp_path / f"{name}.tar", members)
    rows = {f"k{n}": {"caption": f"é {n}", "cls": n, "npy": np.arange(n)} for n in range(3)}
    one, other = (ShardListDataset(tmp_path / f"{name}.tar") for name in "ab")
    with one, other:
        joined = one.join(other).join(rows, missing="none")
        wids.rewrite(joined, tmp_path / "new-%06d.tar")
        assert joined.undecoded()[3][".mask.json"].getvalue() == b'{ "n" :3}'
        for side in (one.map(list), one.join(other.map(dict))):
            with raises(RewriteError, "without transformations", "map="):
                wids.rewrite(side.join(rows, missing="none"), tmp_path / "x-%06d.tar")
    with tarfile.open(tmp_path / "new-000000.tar") as tar:
        found = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    assert found["k3.json"] == found["k3.mask.json"] == b'{ "n" :3}'
    assert (found["k2.caption"], found["k2.cls"]) == ("é 2".encode(), b"2")
    assert np.load(io.BytesIO(found["k2.npy"])).tolist() == [0, 1]
    assert {name for name in found if name.startswith("k3")} == {"k3.json", "k3.mask.json"}


def test_shards_of_a_join_have_its_lengths(tmp_path: Path) -> None:
    """The samples of both sides count for ``maxsize``, in any order."""
    with ShardListDataset(write_shards(tmp_path, [40, 60])) as dataset:
        joined = dataset.join({f"s{n:05d}": b"x" * (n * 100) for n in range(100)}, prefix="v")
        order = np.random.default_rng(0).permutation(100)
        spec = wids.rewrite(joined[order], tmp_path / "new" / "new-%06d.tar", maxsize=100_000)
    sizes = [shard.nbytes for shard in spec.shards]
    assert all(80_000 < (nbytes or 0) <= 100_000 for nbytes in sizes[:-1])
    assert len(sizes) > 6
    with ShardListDataset(spec) as written:
        assert [sample["__key__"] for sample in written] == [f"s{n:05d}" for n in order]


def test_both_datasets_of_a_join_are_compared(tmp_path: Path) -> None:
    """A shard of the other side that was written again does not resume (REWRITE-8)."""
    for name in "ab":
        (tmp_path / name).mkdir()
        write_shards(tmp_path / name, [4])

    def run() -> None:
        sides = [ShardListDataset(tmp_path / name / "train.json") for name in "ab"]
        with sides[0] as one, sides[1] as other:
            joined = one.join(other, prefix="b")
            pattern = tmp_path / "out" / "new-%06d.tar"
            wids.rewrite(joined, pattern, maxcount=2, map=stopping, version="1")

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run()
    tar = tmp_path / "b" / "train-000000.tar"
    tar.write_bytes(tar.read_bytes().replace(b"text 0", b"TEXT 0"))
    with raises(FileExistsError, "interrupted run"):
        run()


def test_a_run_that_resumes_states_what_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line has the number of shards (REWRITE-8)."""
    caplog.set_level("INFO", "wids")
    with ShardListDataset(write_shards(tmp_path, [4])) as dataset:

        def run() -> None:
            pattern = tmp_path / "new-%06d.tar"
            wids.rewrite(dataset, pattern, maxcount=2, map=stopping, version="1")

        with pytest.raises(KeyboardInterrupt):
            run()
        assert "resumed" not in caplog.text
        monkeypatch.setattr(sys.modules[__name__], "REASONS", [])
        run()
    assert "new.json: resumed; shards kept: 1 of 2" in caplog.text


def test_no_sample_is_an_error(tmp_path: Path) -> None:
    """Nobody could open such a spec, so that nothing is published."""
    with ShardListDataset(write_shards(tmp_path, [3])) as dataset:
        with raises(RewriteError, "new.json", "no sample is left"):
            wids.rewrite(dataset, tmp_path / "a" / "new-%06d.tar", map=lambda _: None)
        with raises(RewriteError, "no sample is left"):
            wids.rewrite(dataset[[]], tmp_path / "b" / "new-%06d.tar")
    assert os.listdir(tmp_path / "a") == []
    assert not (tmp_path / "b").exists()


def test_entries_of_the_document_are_kept(tmp_path: Path) -> None:
    """The names of classes are in the new spec too."""
    source = write_shards(tmp_path, [3])
    document = json.loads(source.read_text())
    source.write_text(json.dumps({**document, "classes": ["cat", "dog"]}))
    with ShardListDataset(source) as dataset:
        wids.rewrite(dataset, tmp_path / "new-%06d.tar")
    assert json.loads((tmp_path / "new.json").read_text())["classes"] == ["cat", "dog"]


class Doubled(ShardListDataset):
    """A dataset that decides what a sample is."""

    def __getitem__(self, index: Any) -> Any:
        return {**super().__getitem__(index), ".txt": "other"}


def test_without_map_only_stored_bytes_are_written(tmp_path: Path) -> None:
    """A transformation is neither ignored nor applied: it is an error."""
    source = write_shards(tmp_path, [3])
    with ShardListDataset(source) as dataset:
        with raises(RewriteError, "pass the function as map="):
            wids.rewrite(dataset.map(split), tmp_path / "new-%06d.tar")
        with raises(RewriteError, "pass the function as map="):
            wids.rewrite(dataset.to_tuple("txt"), tmp_path / "new-%06d.tar")
    with Doubled(source) as dataset, raises(RewriteError, "__getitem__", "map="):
        wids.rewrite(dataset, tmp_path / "new-%06d.tar")
    assert not (tmp_path / "new.json").exists()


def test_labels_of_the_plan_are_those_of_samples(tmp_path: Path) -> None:
    """``rename`` gets the same labels when keys are compared and when they are written."""
    seen: list[dict[str, Any]] = []

    def renamed(labels: dict[str, Any]) -> str:
        seen.append({name: value for name, value in labels.items() if name.startswith("__")})
        return f"{labels['__dataset__']}/{labels['__key__']}"

    with ShardListDataset(write_shards(tmp_path, [2]), dataset_name="mine") as dataset:
        wids.rewrite(dataset, tmp_path / "new-%06d.tar", rename=renamed)
    assert seen[:2] == seen[2:]
    assert seen[0]["__dataset__"] == "mine"


def test_an_existing_dataset_is_not_to_be_replaced(tmp_path: Path) -> None:
    """The advice has no option that `rewrite` does not have (REWRITE-6)."""
    with ShardListDataset(write_shards(tmp_path, [2])) as dataset:
        wids.rewrite(dataset, tmp_path / "new-%06d.tar")
        with pytest.raises(FileExistsError, match=r"choose another output$"):
            wids.rewrite(dataset[:1], tmp_path / "new-%06d.tar")


def test_errors_hide_passwords(tmp_path: Path) -> None:
    """The output of a shard is shown without its secrets."""
    with ShardListDataset(write_shards(tmp_path, [2])) as dataset:
        for found in (3, {".txt": "x"}):
            task = RewriteTask(
                "s3://me:secret@host/x.tar",
                10,
                None,
                "",
                SomeSamples(Order(dataset.map(lambda _, found=found: found)), 0, 1),
                None,
            )
            with pytest.raises(RewriteError) as caught:
                rewrite_shard(task, how=Publishing())
            assert "secret" not in str(caught.value)


def test_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the docstring."""
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(rewrite).failed == 0
    assert rewriting.__doc__
