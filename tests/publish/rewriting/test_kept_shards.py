"""`rewrite(keep_shards=True)`: shards in which nothing changes stay where they are."""

from __future__ import annotations

import errno
import json
import os
import random
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import raises, write_shards, write_tar
from faults import failing, faults, interrupting
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback import Server
from s3 import Bucket

import wids
from wids import PackError, ShardListDataset
from wids.cli.main import main

LENGTHS = [4, 3, 0, 5]
Sample = dict[str, Any]


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A dataset with digests, a dataset index, and names of classes."""
    return publish(tmp_path / "in", LENGTHS)


def publish(folder: Path, lengths: list[int]) -> Path:
    folder.mkdir(parents=True)
    spec = wids.build_spec(
        write_shards(folder, lengths), dataset_index=folder / "train.index", digests=True
    )
    spec.save(folder / "train.json")
    document = json.loads((folder / "train.json").read_text())
    (folder / "train.json").write_text(json.dumps(document | {"classes": ["cat", "dog"]}))
    return folder / "train.json"


def opened(spec: Path | str, **options: Any) -> ShardListDataset:
    return ShardListDataset(spec, transformations=[], raw="bytes", **options)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


def names(spec: wids.DatasetSpec) -> list[str]:
    return ["/".join(Path(shard.url).parts[-2:]) for shard in spec.shards]


def fix(sample: Sample) -> Sample | None:
    """Delete one sample, change another one, and return all others under other objects."""
    if sample["__key__"] == "s00004":
        return None
    if sample["__key__"] == "s00006":
        sample[".txt"] = b"fixed"
    return dict(sorted(sample.items()))


def test_a_view_reads_and_writes_only_shards_that_lose_samples(
    published: Path, tmp_path: Path
) -> None:
    """The others are not read: their entries, digests and indexes stay (REWRITE-50)."""
    folder = published.parent
    kept = [folder / f"train-{number:06d}.tar" for number in (0, 3)]
    with opened(published) as dataset:
        before = dataset.spec.shards
        tars = [path.read_bytes() for path in kept]
        for path in kept:
            path.write_bytes(bytes(path.stat().st_size))
        view = dataset[[n for n in range(12) if n != 5]]
        spec = wids.rewrite(view, tmp_path / "out/new-%06d.tar", keep_shards=True)
        for path, data in zip(kept, tars, strict=True):
            path.write_bytes(data)

    assert names(spec) == ["in/train-000000.tar", "out/new-000001.tar", "in/train-000003.tar"]
    assert [spec.shards[0], spec.shards[2]] == [before[0], before[3]]
    assert sorted(contents(tmp_path / "out")) == ["new-000001.tar", "new.index", "new.json"]
    assert wids.verify_spec(tmp_path / "out/new.json") == []
    with opened(tmp_path / "out/new.json") as dataset:
        assert [*dataset.keys()] == [f"s{n:05d}" for n in range(12) if n != 5]
        assert dataset.classes == ["cat", "dog"]


def test_a_map_writes_only_shards_in_which_it_changes_bytes(
    published: Path, tmp_path: Path
) -> None:
    """What is compared are key, fields and bytes, not objects or their order."""
    with opened(published) as dataset:
        spec = wids.rewrite(dataset, tmp_path / "new-%06d.tar", map=fix, keep_shards=True)
        assert names(spec)[::2] == ["in/train-000000.tar", "in/train-000003.tar"]
        assert spec.shards[1].url == f"{tmp_path}/new-000001.tar"
    assert wids.verify_spec(tmp_path / "new.json") == []
    with opened(tmp_path / "new.json") as dataset:
        assert dataset.get_by_key("s00006")[".txt"] == b"fixed"
        assert len(dataset) == 11

    with opened(published) as dataset:
        renamed = wids.rewrite(
            dataset,
            tmp_path / "renamed-%06d.tar",
            rename=lambda labels: labels["__key__"].replace("s00011", "last"),
            keep_shards=True,
        )
        assert names(renamed)[:2] == ["in/train-000000.tar", "in/train-000001.tar"]
        assert renamed.shards[2].url == f"{tmp_path}/renamed-000003.tar"


def test_a_shard_that_loses_all_samples_is_left_out(published: Path, tmp_path: Path) -> None:
    """Whether a view or a map leaves them out; that of no samples was nothing (REWRITE-50)."""
    with opened(published) as dataset:
        for number, options in enumerate(
            [{}, {"map": lambda s: s if not "s00004" <= s["__key__"] <= "s00006" else None}]
        ):
            view = dataset if options else dataset[[0, 1, 2, 3, *range(7, 12)]]
            pattern = tmp_path / f"out-{number}" / "new-%06d.tar"
            spec = wids.rewrite(view, pattern, keep_shards=True, **options)
            assert names(spec) == ["in/train-000000.tar", "in/train-000003.tar"]
            assert wids.verify_spec(pattern.parent / "new.json") == []


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any),
    seed=st.integers(0, 999),
)
def test_any_order_that_keeps_shards_together(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], seed: int
) -> None:
    """Plain Python over the same tars finds the same shards, kept and written (REWRITE-50)."""
    folder = tmp_path_factory.mktemp("keep")
    source = publish(folder / "in", lengths)
    chance = random.Random(seed)
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    shards = [list(range(a, a + length)) for a, length in zip(starts, lengths, strict=True)]
    wanted = [list(shard) for shard in shards]
    for shard in wanted:
        if chance.random() < 0.3:
            chance.shuffle(shard)
        if chance.random() < 0.3:
            del shard[: chance.randrange(3)]
    chance.shuffle(wanted)
    wanted = [shard for shard in wanted if shard]
    if not wanted:
        return
    with opened(source) as dataset:
        view = dataset[[index for shard in wanted for index in shard]]
        spec = wids.rewrite(view, folder / "out" / "new-%06d.tar", keep_shards=True)
    found = []
    for shard in spec.shards:
        with tarfile.open(shard.url) as archive:
            found.append([int(n[1:6]) for n in archive.getnames() if n.endswith(".txt")])
    assert found == wanted
    assert [shard in shards for shard in wanted] == [n.startswith("in/") for n in names(spec)]
    assert wids.verify_spec(folder / "out" / "new.json") == []


def test_readers_of_the_replaced_spec_read_on(published: Path) -> None:
    """In place only the spec is overwritten, so who has the old one still reads it."""
    folder, before = published.parent, contents(published.parent)
    with opened(published) as reader:
        expected = [sample["__key__"] for sample in reader]
        with opened(published) as dataset:
            spec = wids.rewrite(dataset, folder / "fixed-%06d.tar", map=fix, keep_shards=True)
        spec.save(published)
        after = contents(folder)
        assert {name for name in before if before[name] != after[name]} == {"train.json"}
        assert [sample["__key__"] for sample in reader] == expected
    with opened(reader.spec) as again:
        assert [sample["__key__"] for sample in again] == expected
        assert again.get_by_key("s00004")[".txt"] == b"text 4"
    with opened(published) as dataset:
        assert len(dataset) == 11
        with raises(PackError, "expected another output than the input"):
            wids.rewrite(dataset, folder / "fixed-%06d.tar", map=fix, keep_shards=True)
    entries = json.loads(published.read_text())["shardlist"]
    assert [entry["url"] for entry in entries] == [
        "train-000000.tar",
        "fixed-000001.tar",
        "train-000003.tar",
    ]
    assert wids.verify_spec(published) == []


def rewrite(folder: Path, output: Path, **options: Any) -> None:
    with opened(folder / "train.json") as dataset:
        wids.rewrite(
            dataset[[0, *range(4, 12)]],
            output / "new-%06d.tar",
            map=fix,
            version="1",
            keep_shards=True,
            progress=False,
            **options,
        )


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("disturbed", "step"),
    [
        (failing, 11),
        (lambda fault: interrupting(fault, "publish"), 197),
        pytest.param(failing, 2, marks=pytest.mark.long),
    ],
    ids=["calls", "interrupts", "more calls"],
)
def test_kept_shards_survive_every_interruption(
    restarts: bool,
    disturbed: Callable[[Any], Any],
    step: int,
    published: Path,
    tmp_path: Path,
) -> None:
    """Wherever a run ends, the input is unchanged, and the next run does the rest.

    It may resume or start over, in the folder of the input too.
    """
    folder = published.parent
    source = contents(folder)
    rewrite(folder, tmp_path / "whole")
    complete = contents(tmp_path / "whole")
    assert sorted(complete) == ["new-000000.tar", "new-000001.tar", "new.index", "new.json"]
    tars = {name: data for name, data in complete.items() if name.endswith(".tar")}

    for fault in faults(step, at_least=25):
        with suppress(OSError, wids.WidsError), disturbed(fault):
            rewrite(folder, folder)
        now = contents(folder)
        assert {name: now.get(name) for name in source} == source, fault.where
        if "new.json" not in now or "new.partial/plan" in now:
            rewrite(folder, folder, resume=not restarts)
        now = contents(folder)
        assert now.keys() == source.keys() | complete.keys(), fault.where
        assert {name: now[name] for name in source} == source, fault.where
        assert {name: now[name] for name in tars} == tars, fault.where
        assert now["new.index"] == complete["new.index"]
        for name in complete:
            (folder / name).unlink()


def test_what_was_compared_is_not_compared_again(published: Path, tmp_path: Path) -> None:
    """A resumed run calls the map for no shard that is kept or written already."""
    calls: list[str] = []
    fails = True

    def counting(sample: Sample) -> Sample | None:
        calls.append(sample["__key__"])
        if fails and sample["__key__"] == "s00009":
            raise ValueError("a bug")
        return fix(sample)

    def run() -> None:
        with opened(published) as dataset:
            wids.rewrite(
                *(dataset, tmp_path / "new-%06d.tar"), map=counting, version="1", keep_shards=True
            )

    with raises(wids.TransformError, "a bug"):
        run()
    assert calls[:4] == [f"s{n:05d}" for n in range(4)]
    calls.clear()
    fails = False
    run()
    assert calls == [f"s{n:05d}" for n in range(7, 12)]
    assert wids.verify_spec(tmp_path / "new.json") == []


def test_parts_are_merged(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Parts and their merge write the bytes of one run, also after a killed merge."""
    monkeypatch.chdir(tmp_path)
    where = ["--keep-shards", "--where", '__key__ != "s00005"', "-j", "1"]
    assert main(["rewrite", str(published), "in/whole", "-n", "new", *where]) == 0
    out, err = capsys.readouterr()
    assert out == "in/whole: 3 shards, 11 samples\n"
    assert "shards of the input that are kept where they are: 2 of 3" in err
    for number in (1, 2):
        assert main(["rewrite", str(published), "in/new", *where, "--part", f"{number}/2"]) == 0
    for _ in range(2):
        assert main(["rewrite", str(published), "in/new", *where, "--merge"]) == 0
    whole, new = (wids.load_spec(f"in/{name}.json").shards for name in ("whole", "new"))
    assert (whole[0], whole[2]) == (new[0], new[2])
    assert Path("in/whole-000001.tar").read_bytes() == Path("in/new-000001.tar").read_bytes()
    assert Path("in/whole-000001.tar").stat().st_size == new[1].nbytes


def test_only_some_fields_change_shards_that_have_others(tmp_path: Path) -> None:
    """A shard that has no other fields is kept (REWRITE-50)."""
    shards = [
        write_tar(tmp_path / "a.tar", [("a.txt", b"a")]),
        write_tar(tmp_path / "b.tar", [("b.txt", b"b"), ("b.cls", b"1")]),
    ]
    with opened(shards, fields=["txt"]) as dataset:
        spec = wids.rewrite(dataset, tmp_path / "out" / "new-%06d.tar", keep_shards=True)
    assert [Path(shard.url).name for shard in spec.shards] == ["a.tar", "new-000001.tar"]
    assert wids.verify_spec(tmp_path / "out" / "new.json") == []


def test_remote_shards_are_kept_by_their_urls(
    published: Path, server: Server, tmp_path: Path
) -> None:
    """Of a remote dataset only the shard that changes is fetched (REWRITE-50)."""
    for path in published.parent.iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    with opened(f"{server.url}/train.json", cache_dir=tmp_path / "cache") as dataset:
        view = dataset[[n for n in range(12) if n != 5]]
        spec = wids.rewrite(view, tmp_path / "new-%06d.tar", keep_shards=True)
    assert [shard.url for shard in spec.shards] == [
        f"{server.url}/train-000000.tar",
        f"{tmp_path}/new-000001.tar",
        f"{server.url}/train-000003.tar",
    ]
    fetched = {request for request in server.requests if ".tar" in request}
    assert {name for name in fetched if "000001" not in name} == set()
    with opened(tmp_path / "new.json", cache_dir=tmp_path / "cache") as dataset:
        assert [sample["__key__"] for sample in dataset] == [
            f"s{n:05d}" for n in range(12) if n != 5
        ]


def test_a_bucket_is_corrected_in_place(published: Path, bucket: Bucket, tmp_path: Path) -> None:
    """Beside its shards only the new ones are written, after an interruption too."""
    for path in published.parent.iterdir():
        bucket.system.pipe(f"{bucket.url}/{path.name}", path.read_bytes())
    before, fails = bucket.names(), True

    def failing(sample: Sample) -> Sample | None:
        if fails and sample["__key__"] == "s00009":
            raise ValueError("a bug")
        return fix(sample)

    def run() -> wids.DatasetSpec:
        options: dict[str, Any] = {"storage_options": bucket.options}
        with opened(f"{bucket.url}/train.json", cache_dir=tmp_path / "cache", **options) as dataset:
            pattern = f"{bucket.url}/fixed-%06d.tar"
            return wids.rewrite(
                dataset, pattern, map=failing, version="1", keep_shards=True, **options
            )

    with pytest.MonkeyPatch.context() as patches:
        patches.chdir(tmp_path)  # where the journal is
        with raises(wids.TransformError, "a bug"):
            run()
        assert bucket.names() == sorted([*before, "fixed-000001.tar"])
        fails = False
        spec = run()
    assert bucket.names() == sorted([*before, "fixed-000001.tar", "fixed.index", "fixed.json"])
    assert names(spec) == [
        f"{bucket.url[5:]}/{name}"
        for name in ("train-000000.tar", "fixed-000001.tar", "train-000003.tar")
    ]
    assert wids.verify_spec(f"{bucket.url}/fixed.json", storage_options=bucket.options) == []


@pytest.mark.parametrize(
    ("change", "options", "parts"),
    [
        (lambda d: d[[0, 5, 1]], {}, ("found some of", "leave keep_shards out")),
        (lambda d: d, {"maxcount": 3}, ("expected it without maxcount",)),
        (lambda d: d.join({"s00001": {"word": "a"}}, missing="none"), {}, ("found joined ones",)),
    ],
)
def test_what_cannot_keep_shards(
    change: Callable[[Any], Any],
    options: dict[str, Any],
    parts: tuple[str, ...],
    published: Path,
    tmp_path: Path,
) -> None:
    """Orders that mix shards, limits of shards and joins are errors that say so."""
    with opened(published) as dataset, raises(ValueError, "keep_shards", *parts):
        wids.rewrite(change(dataset), tmp_path / "new-%06d.tar", keep_shards=True, **options)


def test_readers_of_a_remote_spec_could_not_open_local_shards(published: Path) -> None:
    """So a remote output of a local dataset is an error before anything is written."""
    with opened(published) as dataset, raises(PackError, "expected shards to keep", "train-000001"):
        wids.rewrite(dataset[1:], "memory://there/new-%06d.tar", keep_shards=True)


@pytest.mark.parametrize("restarts", [False, True])
def test_commands_that_are_kept(restarts: bool, published: Path, tmp_path: Path) -> None:
    """The spec names them, after an interruption too.

    A run that ended after it had published everything is resumed, or starts over.
    """
    commands = [f"pipe:cat '{path}'" for path in sorted(published.parent.glob("*.tar"))]
    folder, cache = tmp_path / "out", tmp_path / "cache"

    def run(resume: bool) -> wids.DatasetSpec:
        with opened(commands, cache_dir=cache) as dataset:
            view = dataset[[n for n in range(12) if n != 5]]
            return wids.rewrite(view, folder / "new-%06d.tar", keep_shards=True, resume=resume)

    unlink = os.unlink

    def refuse(path: Any, *args: Any, **options: Any) -> None:
        if os.fspath(path).endswith("new.partial/plan"):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        unlink(path, *args, **options)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(os, "unlink", refuse)
        with pytest.raises(PermissionError):
            run(resume=True)
    assert {"new.partial/plan", "new.json"} <= contents(folder).keys()
    spec = run(resume=not restarts)
    assert [shard.url for shard in spec.shards] == [
        commands[0],
        f"{folder}/new-000001.tar",
        commands[3],
    ]
    assert sorted(contents(folder)) == ["new-000001.tar", "new.index", "new.json"]
    with raises(wids.SpecError, "allow_pipe=True"):
        opened(folder / "new.json")
    with opened(folder / "new.json", allow_pipe=True, cache_dir=cache) as dataset:
        assert [*dataset.keys()] == [f"s{n:05d}" for n in range(12) if n != 5]
        assert dataset[10][".txt"] == b"text 11"


def test_records_of_other_work_are_not_believed(published: Path, tmp_path: Path) -> None:
    """What an interrupted run kept, another one with other functions compares."""

    def fails_late(sample: Sample) -> Sample:
        if sample["__key__"] == "s00009":
            raise ValueError("a bug")
        return sample

    with opened(published) as dataset, ThreadPoolExecutor(1) as executor:
        with raises(wids.TransformError, "a bug"):
            wids.rewrite(
                *(dataset, tmp_path / "new-%06d.tar"),
                map=fails_late,
                keep_shards=True,
                executor=executor,
            )
        wids.rewrite(
            *(dataset[:11], tmp_path / "new-%06d.tar"),
            map=lambda sample: {**sample, ".txt": b"new"},
            keep_shards=True,
        )
    with opened(tmp_path / "new.json") as dataset:
        assert [sample[".txt"] for sample in dataset] == [b"new"] * 11


def test_what_ctrl_c_leaves_is_resumed(published: Path, tmp_path: Path) -> None:
    """Shards that were found to be the same are not compared again."""
    calls, presses = [], True

    def interrupted(sample: Sample) -> Sample:
        calls.append(sample["__key__"])
        if presses and sample["__key__"] == "s00009":
            raise KeyboardInterrupt
        return sample

    def run() -> None:
        with opened(published) as dataset:
            wids.rewrite(
                *(dataset, tmp_path / "new-%06d.tar"),
                map=interrupted,
                version="1",
                keep_shards=True,
            )

    with pytest.raises(KeyboardInterrupt):
        run()
    calls.clear()
    presses = False
    run()
    assert set(calls) == {f"s{n:05d}" for n in range(7, 12)}


class Changing(ShardListDataset):
    """A program's own class, whose samples are not those that are stored."""

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        if isinstance(sample, dict):
            return {**sample, ".txt": b"changed"}
        if isinstance(sample, list):
            return [{**each, ".txt": b"changed"} for each in sample]
        return sample  # a view


def test_samples_of_an_overridden_class_are_written(published: Path, tmp_path: Path) -> None:
    """They are not compared with themselves."""
    with Changing(published, transformations=[], raw="bytes") as dataset:
        spec = wids.rewrite(
            dataset, tmp_path / "new-%06d.tar", map=lambda sample: sample, keep_shards=True
        )
    assert all("new-" in shard.url for shard in spec.shards)
    with opened(tmp_path / "new.json") as dataset:
        assert {sample[".txt"] for sample in dataset} == {b"changed"}


def test_all_shards_are_those_of_one_dataset(tmp_path: Path) -> None:
    """Also where those of several are rewritten, as without `keep_shards` (REWRITE-50)."""
    parts = [publish(tmp_path / name, [3, 2]) for name in "ab"]
    document = {"datasets": [{"name": part.parent.name, "source_url": str(part)} for part in parts]}
    both = {**document, "name": "both", "shardlist": []}
    (tmp_path / "both.json").write_text(json.dumps(both))
    with opened(tmp_path / "both.json") as dataset:
        spec = wids.rewrite(dataset[1:], tmp_path / "new-%06d.tar", keep_shards=True)
    assert len(spec.shards) == 4
    assert {shard.dataset for shard in spec.shards} == {None}


def test_a_damaged_shard_is_not_kept(published: Path, tmp_path: Path) -> None:
    """Where it is read for its index, its digest is compared (REWRITE-50)."""
    document = json.loads(published.read_text())
    del document["index"]
    published.write_text(json.dumps(document))
    path = published.parent / "train-000000.tar"
    data = bytearray(path.read_bytes())
    data[512] ^= 1
    path.write_bytes(data)
    with opened(published) as dataset, raises(wids.ShardFormatError, "train-000000", "sha256"):
        wids.rewrite(dataset[:11], tmp_path / "new-%06d.tar", keep_shards=True)


def test_a_shard_that_is_kept_twice_is_merged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge that was complete is complete again, whatever the input names twice."""
    monkeypatch.chdir(tmp_path)
    source = publish(tmp_path / "in", [3, 2])
    part = {"name": "a", "source_url": str(source)}
    document = {"name": "both", "shardlist": [], "datasets": [part, {**part, "name": "b"}]}
    Path("both.json").write_text(json.dumps(document))
    where = ["--keep-shards", "--where", '__key__ != "s00004"', "-j", "1"]
    for more in (["--part", "1/2"], ["--part", "2/2"], ["--merge"], ["--merge"]):
        assert main(["rewrite", "both.json", "new", *where, *more]) == 0
    assert len(wids.load_spec("new.json").shards) == 4


def test_what_a_rewrite_replaced_is_not_to_be_appended(published: Path) -> None:
    """A writer that finds a replaced shard does not advise to add it again."""
    with opened(published) as dataset:
        pattern = published.parent / "fixed-%06d.tar"
        spec = wids.rewrite(dataset, pattern, map=fix, keep_shards=True)
    spec.save(published)
    with raises(FileExistsError, "train-000001.tar", "keep_shards=True", "another pattern"):
        wids.ShardWriter(published.parent / "train-%06d.tar", if_exists="append")
