"""Shards that are appended to a published dataset."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import in_child, raises, sample_members, write_shards, write_tar
from events import LONG_S
from s3 import Bucket

import wids
from wids import ShardWriter, SpecError, append_shards
from wids.cli.main import main
from wids.storage import upload


def texts(spec: Path | str, **options: Any) -> list[str]:
    with wids.ShardListDataset(spec, **options) as dataset:
        return [sample[".txt"] for sample in dataset]


def expected(stop: int) -> list[str]:
    return [f"text {number}" for number in range(stop)]


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A published dataset of 20 samples in shards of 8, 5 and 7, with its dataset index."""
    path = write_shards(tmp_path, [8, 5, 7])
    wids.build_spec(path, dataset_index=tmp_path / "train.index").save(path)
    return path


def more(folder: Path, name: str = "more.tar", start: int = 20, stop: int = 26) -> Path:
    return write_tar(folder / name, sample_members(start, stop))


def test_shards_are_added(spec: Path, tmp_path: Path) -> None:
    """The new dataset is what `build_spec` makes of all shards, byte for byte (SPEC-36)."""
    before = json.loads(spec.read_text())
    new = append_shards(spec, [more(tmp_path)])
    after = json.loads(spec.read_text())
    assert after["shardlist"][:3] == before["shardlist"]
    assert {**after, "shardlist": 0} == {**before, "shardlist": 0}
    assert texts(spec) == expected(26)
    assert wids.load_spec(spec) == new
    assert wids.verify_spec(spec) == []
    whole = wids.build_spec(
        [shard.url for shard in new.shards], dataset_index=tmp_path / "whole.index"
    )
    assert [s.entry() for s in whole.shards] == [s.entry() for s in new.shards]
    assert (tmp_path / "whole.index").read_bytes() == (tmp_path / "train.index").read_bytes()


def test_old_shards_are_not_read(spec: Path, tmp_path: Path) -> None:
    """They may be elsewhere: their entries and indexes are taken over (SPEC-36)."""
    for path in tmp_path.glob("train-*.tar"):
        path.rename(path.with_suffix(".away"))
    append_shards(spec, [more(tmp_path)])
    for path in tmp_path.glob("*.away"):
        path.rename(path.with_suffix(".tar"))
    assert wids.verify_spec(spec) == []


def test_what_a_document_says_is_kept(tmp_path: Path) -> None:
    """Entries, names, bases and other keys of the spec stay as they are (SPEC-36)."""
    (tmp_path / "data").mkdir()
    write_shards(tmp_path / "data", [3])
    (tmp_path / "data" / "train-000000.tar").rename(tmp_path / "data" / "a.b.tar")
    spec = tmp_path / "a.json"
    document = {
        "info": "x", "base": "data", "mine": [1], "key_split": "last",
        "shardlist": [{"url": "a.b.tar", "nsamples": 3, "by": "hand"}], "name": "n",
    }  # fmt: skip
    spec.write_text(json.dumps(document))
    append_shards(spec, [more(tmp_path / "data"), more(tmp_path, "out.tar", 40, 42)])
    after = json.loads(spec.read_text())
    assert list(after) == list(document)
    assert after["shardlist"][0] == document["shardlist"][0]
    assert [entry["url"] for entry in after["shardlist"]] == [
        "a.b.tar", "more.tar", str(tmp_path / "out.tar")
    ]  # fmt: skip
    assert "key_split" not in after["shardlist"][1]
    assert len(texts(spec)) == 3 + 6 + 2


def test_a_staged_dataset(tmp_path: Path) -> None:
    """Of a dataset that will be at its base, all new files are still here (SPEC-36)."""
    (tmp_path / "x").mkdir()
    write_shards(tmp_path / "x", [4])
    spec, base = tmp_path / "x" / "all.json", "https://example.com/d/"
    assert main(["create", str(tmp_path / "x"), "-o", str(spec), "-b", base, "-j1"]) == 0
    new = more(tmp_path)
    with raises(ValueError, "expected shards in its base https://example.com/d/", "--base"):
        append_shards(spec, [new])
    with raises(ValueError, "expected its base https://example.com/d/"):
        append_shards(spec, [new], base="https://example.com/e/")
    command = ["create", "--append", str(new), "-o", str(spec), "-j1", "-b", base]
    assert main(command) == 0
    new.rename(tmp_path / "x" / new.name)
    assert wids.load_spec(spec).shards[1].url == f"{base}more.tar"
    assert len(texts(spec, base=tmp_path / "x")) == 10
    assert wids.verify_spec(spec, base=tmp_path / "x") == []


def test_keys_of_old_and_new_shards(spec: Path, tmp_path: Path, capsys: Any) -> None:
    """Keys that are in old and new shards are reported, without reading the old."""
    found: list[wids.Problem] = []
    for path in tmp_path.glob("train-*.tar"):
        path.chmod(0)
    append_shards(spec, [more(tmp_path, start=19)], on_problem=found.append)
    assert [problem.severity for problem in found] == ["error"]
    assert '1 key occurs in several shards: "s00019" in train-000002.tar and more.tar' in str(found)
    again = more(tmp_path, "again.tar", 18, 19)
    assert main(["create", "--append", str(again), "-o", str(spec), "-j1"]) == 1
    out, err = capsys.readouterr()
    assert "2 keys occur in several shards" in err
    assert "5 shards, 28 samples" in out


@pytest.mark.parametrize(
    ("document", "kind", "message"),
    [
        ({"datasets": [{"shardlist": []}]}, wids.SpecError, "a shardlist of its own"),
        ({"shardlist": ["a.tar"], "datasets": [{}]}, wids.SpecError, "spec that consists of other"),
        ({"shardlist": ["a.tar"]}, wids.SpecError, "samples of every shard, found none for"),
        (
            {"shardlist": [{"url": "a.tar", "nsamples": 1, "key_split": s} for s in ("first",
             "last")]}, wids.SpecError, "one key_split"),
        (
            {"shardlist": [{"url": "a.tar", "nsamples": 1}], "key_split": "last"},
            ValueError, 'expected key_split="last" as in its shards, found "first"'),
        (
            {"shardlist": [{"url": "a.tar", "nsamples": 1}], "index": "no.index"},
            wids.SpecError, "found no file; make both again with"),
        ({"shardlist": [{"url": "more.tar", "nsamples": 1}]}, ValueError, "more.tar, which it alr"),
        (None, FileNotFoundError, "expected the spec of a published dataset"),
    ],
)  # fmt: skip
def test_what_cannot_be_appended_to(
    document: Any, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    """An error says what to do, before anything is written."""
    new = more(tmp_path)
    spec = tmp_path / "a.json"
    if document is not None:
        spec.write_text(json.dumps(document))
    before = spec.read_bytes() if document else b""
    with raises(kind, message):
        append_shards(spec, [new], key_split="first" if "last" in message else None)
    assert (spec.read_bytes() if document else b"") == before
    assert {name for name in os.listdir(tmp_path) if name[0] != "."} <= {"a.json", "more.tar"}


def test_other_things_that_are_refused(spec: Path, tmp_path: Path, capsys: Any) -> None:
    """The same shard twice, a dataset index of another dataset, options that would be lost."""
    new = more(tmp_path)
    with raises(ValueError, f"found {new}, which it already lists"):
        append_shards(spec, [new, new])
    assert main(["create", "--append", str(new), "-o", str(spec), "-n", "x"]) == 1
    assert "--name: expected it without --append" in capsys.readouterr().err
    other = more(tmp_path, "other.tar", 0, 3)
    wids.build_spec([other], dataset_index=tmp_path / "train.index")
    with raises(wids.SpecError, "expected the dataset index of", "found one of other shards"):
        append_shards(spec, [new])


def test_without_a_dataset_index(tmp_path: Path) -> None:
    """Without a dataset index it stays without one; the remark says what was not compared."""
    spec = write_shards(tmp_path, [4])
    found: list[wids.Problem] = []
    append_shards(spec, [more(tmp_path)], on_problem=found.append)
    assert [problem.severity for problem in found] == ["remark"]
    assert "were not compared" in found[0].text
    assert len(texts(spec)) == 10
    assert not (tmp_path / "train.index").exists()


def test_states_saved_before(spec: Path, tmp_path: Path) -> None:
    """A state of the old order is refused, and fits the part that the dataset was."""
    with wids.ShardListDataset(spec) as dataset:
        sampler = wids.ChunkedSampler(dataset, chunksize=3, seed=1)
        order = list(sampler)
        old = wids.ChunkedSampler(dataset, chunksize=3, seed=1)
        state = old.state_dict(num_consumed=9)
    append_shards(spec, [more(tmp_path)])
    with wids.ShardListDataset(spec) as dataset:
        with raises(wids.StateError, "num_shards: expected 4, found 3 in the state"):
            wids.ChunkedSampler(dataset, chunksize=3, seed=1).load_state_dict(state)
    now = wids.load_spec(spec)
    with wids.ShardListDataset(replace(now, shards=now.shards[:3])) as dataset:
        resumed = wids.ChunkedSampler(dataset, chunksize=3, seed=1)
        resumed.load_state_dict(state)
        assert list(resumed) == order[9:]


@pytest.mark.parametrize("step", ["dataset index", "spec"])
def test_a_killed_append(spec: Path, tmp_path: Path, step: str) -> None:
    """Killed before or after its dataset index is there, it leaves the old dataset.

    A reader of the old spec can use the new dataset index (SPEC-36).
    """
    new = more(tmp_path)
    before = spec.read_bytes()

    def killed() -> bool:
        plain = os.replace

        def replace(source: str, target: str) -> None:
            if target.endswith(".index" if step == "dataset index" else ".json"):
                os.kill(os.getpid(), signal.SIGKILL)
            plain(source, target)

        os.replace = replace  # type: ignore[assignment]
        append_shards(spec, [new])
        return True

    assert not in_child(killed)
    assert spec.read_bytes() == before
    assert texts(spec) == expected(20)
    with wids.ShardListDataset(spec) as dataset:
        assert dataset.get_by_key("s00019")[".txt"] == "text 19"
        with pytest.raises(KeyError):
            dataset.get_by_key("s00020")
    append_shards(spec, [new])
    assert texts(spec) == expected(26)
    assert wids.verify_spec(spec) == []


def test_a_dataset_index_that_lacks_the_last_shards(spec: Path, tmp_path: Path) -> None:
    """Only the shards that it lacks are read again, as after two appends met (SPEC-36)."""
    dataset_index = tmp_path / "train.index"
    before = dataset_index.read_bytes()
    append_shards(spec, [more(tmp_path)])
    dataset_index.write_bytes(before)
    for path in tmp_path.glob("train-*.tar"):
        path.rename(path.with_suffix(".away"))
    append_shards(spec, [more(tmp_path, "last.tar", 26, 30)])
    for path in tmp_path.glob("*.away"):
        path.rename(path.with_suffix(".tar"))
    assert texts(spec) == expected(30)
    assert wids.verify_spec(spec) == []


def test_a_reader_at_any_moment(spec: Path, tmp_path: Path) -> None:
    """While shards are appended, readers find one dataset or the other, and all keys (SPEC-36)."""
    readers = """
import sys, wids
while True:
    with wids.ShardListDataset(sys.argv[1]) as dataset:
        n = len(dataset)
        assert n % 6 == 2, n
        assert dataset[n - 1][".txt"] == f"text {n - 1}"
        assert dataset.get_by_key(f"s{n - 1:05d}")[".txt"] == f"text {n - 1}"
        assert dataset.get_by_key("s00000")[".txt"] == "text 0"
    print(n, flush=True)
    if n == 20 + 6 * 8:
        break
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", readers, str(spec)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for number in range(8):
            process.stdout.readline()  # it has read, and reads again
            start = 20 + 6 * number
            append_shards(spec, [more(tmp_path, f"more-{number}.tar", start, start + 6)])
        process.communicate(timeout=LONG_S)
    assert process.returncode == 0


@pytest.mark.long
def test_two_appends_at_once(spec: Path, tmp_path: Path) -> None:
    """They wait for one another, and nothing is lost (SPEC-36)."""
    code = "import sys, wids; wids.append_shards(sys.argv[1], [sys.argv[2]])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = []
    for number in range(3):
        new = more(tmp_path, f"more-{number}.tar", 20 + 6 * number, 26 + 6 * number)
        command = [sys.executable, "-c", code, str(spec), str(new)]
        processes.append(subprocess.Popen(command, env=environment))
    assert [process.wait(100) for process in processes] == [0, 0, 0]
    assert sorted(texts(spec)) == sorted(expected(38))
    assert wids.verify_spec(spec) == []


def fill(writer: ShardWriter, start: int, stop: int) -> None:
    for number in range(start, stop):
        writer.write({"__key__": f"s{number:05d}", "txt": f"text {number}"})


def test_verify_between_the_two_steps(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The dataset is the old one, and a remark says why its dataset index has more (SPEC-36)."""
    before = spec.read_bytes()

    def killed() -> bool:
        rename = os.replace

        def killing(source: str, target: str) -> None:
            if target == str(spec):
                os.kill(os.getpid(), signal.SIGKILL)
            rename(source, target)

        os.replace = killing
        append_shards(spec, [more(tmp_path)])
        return True

    assert not in_child(killed)
    assert spec.read_bytes() == before
    assert texts(spec) == expected(20)
    assert main(["verify", str(spec), "-j1"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "note: " in printed.err
    assert "train.index: has the indexes of 4 shards, and the spec lists 3" in printed.err
    assert "being appended" in printed.err
    # What is wrong with the dataset is found all the same.
    (tmp_path / "train-000002.tar").unlink()
    write_tar(tmp_path / "train-000002.tar", sample_members(12, 19))
    found = [str(problem) for problem in wids.verify_spec(spec, on_remark=lambda _: None)]
    assert len(found) == 1
    assert "train-000002.tar: the spec says the sha256" in found[0]
    write_tar(tmp_path / "train-000002.tar", sample_members(13, 20))

    append_shards(spec, [more(tmp_path)])
    remarks: list[wids.Problem] = []
    assert wids.verify_spec(spec, on_remark=remarks.append) == remarks == []


def test_repeated_keys_between_the_two_steps(tmp_path: Path) -> None:
    """Keys of shards that the spec does not list yet are not its keys (SPEC-36)."""
    shards = [more(tmp_path, f"{n}.tar", start, start + 3) for n, start in enumerate([0, 2, 0])]
    spec, dataset_index = tmp_path / "a.json", tmp_path / "a.index"
    whole = wids.build_spec(shards, dataset_index=dataset_index, on_problem=lambda _: None)
    for count, expected_text in ((2, '1 key occurs in several shards: "s00002"'), (1, "")):
        replace(whole, shards=whole.shards[:count]).save(spec)
        found = [str(problem) for problem in wids.verify_spec(spec, on_remark=lambda _: None)]
        assert [expected_text in text for text in found] == [True] * (count - 1)


def test_a_writer_appends(tmp_path: Path) -> None:
    """New shards begin after the last number, and the dataset changes at the end (SPEC-36)."""
    pattern, spec = tmp_path / "a-%d.tar", tmp_path / "a.json"
    with raises(FileNotFoundError, "expected the spec of a published dataset"):
        ShardWriter(pattern, if_exists="append")
    with ShardWriter(pattern, maxcount=10) as writer:
        fill(writer, 0, 25)
    with ShardWriter(pattern, maxcount=4, if_exists="append") as writer:
        assert (writer.num_samples, writer.shards) == (0, [])
        fill(writer, 25, 30)
        assert texts(spec) == expected(25)
    assert texts(spec) == expected(30)
    assert [shard.num_samples for shard in wids.load_spec(spec).shards] == [10, 10, 5, 4, 1]
    assert wids.verify_spec(spec) == []
    with ShardWriter(pattern, if_exists="append"):
        pass
    assert len(texts(spec)) == 30


def test_a_writer_after_an_interrupted_append(tmp_path: Path) -> None:
    """Its complete shards stay if `--append` adds them before the next one."""
    pattern, spec = tmp_path / "a-%d.tar", tmp_path / "a.json"
    with ShardWriter(pattern, maxcount=10) as writer:
        fill(writer, 0, 10)
    with raises(KeyboardInterrupt):
        with ShardWriter(pattern, maxcount=2, if_exists="append") as writer:
            fill(writer, 10, 13)
            raise KeyboardInterrupt
    assert texts(spec) == expected(10)
    assert main(["create", "--append", str(tmp_path / "a-1.tar"), "-o", str(spec), "-j1"]) == 0
    with ShardWriter(pattern, if_exists="append") as writer:
        fill(writer, 12, 15)
    assert texts(spec) == expected(15)


def test_in_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    """Shards are appended to a dataset at a URL, by both ways (SPEC-36)."""
    options = bucket.options
    pattern, spec = f"{bucket.url}/a-%d.tar", f"{bucket.url}/a.json"
    with ShardWriter(pattern, storage_options=options) as writer:
        fill(writer, 0, 5)
    with ShardWriter(pattern, if_exists="append", storage_options=options) as writer:
        fill(writer, 5, 8)
    bucket.system.put(str(more(tmp_path, "b.tar", 8, 9)), f"{bucket.url}/b.tar")
    bucket.requests.clear()
    append_shards(spec, [f"{bucket.url}/b.tar"], storage_options=options)
    assert not [path for _, path in bucket.requests if "a-0.tar" in path]
    assert texts(spec, storage_options=options) == expected(9)
    assert wids.verify_spec(spec, storage_options=options) == []


@pytest.mark.long
def test_two_appends_to_a_url(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server compares versions: the slower one begins again, and nothing is lost (SPEC-36)."""
    options = bucket.options
    spec = f"{bucket.url}/a.json"
    with ShardWriter(f"{bucket.url}/a-%d.tar", storage_options=options) as writer:
        fill(writer, 0, 5)
    urls = []
    for number in range(2):
        path = more(tmp_path, f"b{number}.tar", 5 + number, 6 + number)
        bucket.system.put(str(path), f"{bucket.url}/{path.name}")
        urls.append(f"{bucket.url}/{path.name}")
    plain = upload.upload
    appended: list[str] = []

    def slow(path: str, url: str, **about: Any) -> None:
        # At its last step, after it has looked at the spec once more.
        if url == spec and not appended:
            appended.append(url)
            append_shards(spec, [urls[0]], storage_options=options)
        plain(path, url, **about)

    monkeypatch.setattr(upload, "upload", slow)
    append_shards(spec, [urls[1]], storage_options=options)
    assert texts(spec, storage_options=options) == expected(7)
    assert wids.verify_spec(spec, storage_options=options) == []


def test_classes_of_appended_shards(spec: Path, tmp_path: Path) -> None:
    """Other names are an error, more of them are added; a list that lacks is remarked (SPEC-62)."""
    document = {**json.loads(spec.read_text()), "classes": ["bird", "cat"]}
    spec.write_text(json.dumps(document))
    new = wids.load_spec([more(tmp_path)])
    others = replace(new, extras={"classes": ["cat"]})
    with raises(SpecError, "new shards: expected the classes of", "2 (bird, cat), found 1 (cat)"):
        append_shards(spec, others)
    assert json.loads(spec.read_text()) == document
    remarks: list[wids.Problem] = []
    append_shards(spec, new, on_problem=remarks.append)
    assert [r.severity for r in remarks] == ["remark"]
    assert "the new shards state no classes" in remarks[0].text
    longer = replace(
        wids.load_spec([more(tmp_path, "b.tar", 26, 30)]),
        extras={"classes": ["bird", "cat", "dog"]},
    )
    assert append_shards(spec, longer).classes == ["bird", "cat", "dog"]


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_killed_writer_is_run_again(is_complete: bool, spec: Path, tmp_path: Path) -> None:
    """Shards that it left are written again, so that each sample is there once."""
    pattern = tmp_path / "train-%06d.tar"

    def append(stop: int) -> None:
        with ShardWriter(pattern, maxcount=4, if_exists="append") as writer:
            for number in range(20, stop):
                writer.write({"__key__": f"s{number:05d}", "txt": f"text {number}"})
            if stop < 32:
                os._exit(7)

    assert not in_child(lambda: append(27 if is_complete else 22) is None)
    before = {path.name for path in tmp_path.iterdir()}
    assert ("train-000003.tar" in before) == is_complete
    assert "train.partial" in before
    append(32)
    assert texts(spec) == expected(32)
    assert wids.verify_spec(spec) == []
    assert not (tmp_path / "train.partial").exists()


def test_what_a_killed_writer_left_stays_if_the_spec_has_changed(
    spec: Path, tmp_path: Path
) -> None:
    """Only what an append to this very spec has begun is written again."""
    pattern = tmp_path / "train-%06d.tar"

    def append() -> None:
        with ShardWriter(pattern, maxcount=2, if_exists="append") as writer:
            for number in range(20, 23):
                writer.write({"__key__": f"s{number:05d}", "txt": f"text {number}"})
            os._exit(7)

    assert not in_child(lambda: append() is None)
    left = (tmp_path / "train-000003.tar").read_bytes()
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "author": "another process"}))
    with raises(FileExistsError, "train-000003.tar: exists", "no append to it as it is now"):
        ShardWriter(pattern, if_exists="append")
    assert (tmp_path / "train-000003.tar").read_bytes() == left


@pytest.mark.usefixtures("spec")
def test_foreign_shards_are_not_written_again(tmp_path: Path) -> None:
    """A shard that no append has begun is an error that says what to do."""
    foreign = more(tmp_path, "train-000009.tar")
    with raises(FileExistsError, "train-000009.tar: exists", "no append to it as it is now"):
        ShardWriter(tmp_path / "train-%06d.tar", if_exists="append")
    assert foreign.exists()
