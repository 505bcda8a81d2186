"""A spec and its shards → a line for each problem."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import sample_members, write_tar
from loopback import Server

from wids import build_spec, verify_spec
from wids.shards.costs import DownloadCost


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A spec of six shards with everything stated, and its dataset index."""
    paths = [
        write_tar(tmp_path / f"{number}.tar", sample_members(10 * number, 10 * number + 10))
        for number in range(6)
    ]
    build_spec(paths, name="train", dataset_index=tmp_path / "train.index").save(
        tmp_path / "train.json"
    )
    return tmp_path / "train.json"


def problems(spec: Any, **options: Any) -> list[str]:
    return [str(problem) for problem in verify_spec(spec, **options)]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def edit(spec: Path, number: int, **changes: Any) -> None:
    document = json.loads(spec.read_text())
    entry = document["shardlist"][number] | changes
    document["shardlist"][number] = {k: v for k, v in entry.items() if v is not None}
    spec.write_text(json.dumps(document))


def test_an_intact_dataset_has_no_problems(spec: Path) -> None:
    """Intact shards give no lines, with their fields decoded too."""
    assert problems(spec) == problems(spec, decode=True) == []
    assert problems(sorted(spec.parent.glob("*.tar"))) == []


def test_each_damage_is_named_and_nothing_else(spec: Path) -> None:
    """A flipped byte, a cut, a missing shard and a wrong count: a line for each."""
    folder = spec.parent
    flip(folder / "1.tar", 600)  # in the data of a member
    data = (folder / "2.tar").read_bytes()
    (folder / "2.tar").write_bytes(data[:5000])
    (folder / "3.tar").unlink()
    edit(spec, 4, nsamples=8)

    found = problems(spec)

    assert len(found) == 4
    assert found[0].startswith(f"{folder}/1.tar: the spec says the sha256 ")
    assert found[1].startswith(
        f"{folder}/2.tar: the spec says {len(data)} bytes, the file has 5000; "
    )
    assert found[2] == f"{folder}/3.tar: cannot be read: No such file or directory"
    assert found[3] == f"{folder}/4.tar: the spec says 8 samples, the shard has 10"


def test_a_damaged_header_is_found_without_a_digest(spec: Path) -> None:
    """The checksums in the tar are verified."""
    edit(spec, 1, sha256=None)
    flip(spec.parent / "1.tar", 3)

    found = problems(spec)

    assert len(found) == 1
    assert found[0].startswith(f"{spec.parent}/1.tar: ")
    assert "at byte 0: expected the header of a member" in found[0]


def test_md5_is_compared(spec: Path) -> None:
    """Older specs state an MD5 digest."""
    edit(spec, 1, sha256=None, md5sum="0" * 32)
    assert [f"the spec says the md5sum {'0' * 32}" in line for line in problems(spec)] == [True]


def test_odd_names_are_listed(tmp_path: Path) -> None:
    """Names that belong to no sample, and names that occur twice."""
    members = [*sample_members(0, 3), *sample_members(1, 2)]
    members += [(f"README{n}", b"") for n in range(5)]
    path = write_tar(tmp_path / "a.tar", members)

    assert problems([path]) == [
        f"{path}: 5 members belong to no sample: README0, README1, README2, …",
        f"{path}: 2 names occur more than once: s00001.txt, s00001.cls",
    ]


def test_metadata_is_remarked_on(tmp_path: Path) -> None:
    """Once for all shards, and it is no problem (KEY-5)."""
    paths = []
    for number in range(3):
        members = [*sample_members(number, number + 1), ("__meta__/info.json", b"{}")]
        paths.append(write_tar(tmp_path / f"{number}.tar", members[: 3 if number else 2]))
    remarks: list[Any] = []
    assert verify_spec(paths, on_remark=remarks.append) == []
    text = "members skipped as metadata, as in webdataset (1): __meta__/info.json"
    (remark,) = remarks
    assert str(remark) == f"{paths[1]}: {text}; such members are in 1 of the other shards too"


def test_bytes_after_the_end_are_a_problem(spec: Path) -> None:
    """A reader would never see them."""
    edit(spec, 1, sha256=None, filesize=None)
    with (spec.parent / "1.tar").open("ab") as file:
        file.write(b"?" * 512)

    found = problems(spec)

    assert len(found) == 2
    assert "1.tar" in found[0]
    assert found[1] == (
        f"{spec.parent}/train.index: its index of 1.tar does not match the shard; "
        "rebuild the dataset index"
    )


def test_fields_are_decoded_on_request(tmp_path: Path) -> None:
    """Each field that cannot be decoded is named with its sample."""
    path = write_tar(tmp_path / "a.tar", [("a.cls", b"1"), ("b.cls", b"cat"), ("c.jpg", b"?")])

    assert problems([path]) == []
    found = problems([path], decode=True)
    assert len(found) == 2
    assert found[0].startswith(f'{path}: sample "b" (number 1): field ".cls": expected cls')
    assert '"c" (number 2)' in found[1]


def test_a_folder_is_a_problem(tmp_path: Path) -> None:
    """A folder in place of a shard does not end the verification."""
    (tmp_path / "a.tar").mkdir()
    entry = {"url": str(tmp_path / "a.tar"), "sha256": "0" * 64}
    assert len(problems([entry, str(tmp_path / "b.tar")])) == 2


def test_the_same_problem_of_many_samples_is_one_line(tmp_path: Path) -> None:
    """If every sample has the same problem, one line has their number."""
    path = write_tar(tmp_path / "a.tar", [(f"{n}.pkl", b"x") for n in range(50)])
    found = problems([path], decode=True)
    assert len(found) == 1
    assert found[0].endswith("(and 49 more like it)")


def test_all_damaged_samples_are_named(tmp_path: Path) -> None:
    """In the text and in ``keys``, which has no samples that only this machine cannot decode."""
    members = [("a.jpg", b""), ("b.txt", b"b"), ("c.jpg", b""), ("d.jpg", b""), ("e.pkl", b"x")]
    damaged, pickle = verify_spec([write_tar(tmp_path / "a.tar", members)], decode=True)
    assert 'sample "a" (number 0)' in damaged.text
    assert damaged.text.endswith("(and 2 more like it: c, d)")
    assert (damaged.keys, pickle.keys) == (("a", "c", "d"), ())


def test_the_dataset_index_is_compared(spec: Path) -> None:
    """A dataset index of other shards, of another number of shards, a damaged and a missing one."""
    folder = spec.parent
    dataset_index = folder / "train.index"
    build_spec([folder / "0.tar"], dataset_index=dataset_index)
    assert problems(spec) == [
        f"{dataset_index}: expected the indexes of 6 shards, found 1",
    ]
    build_spec([folder / f"{n}.tar" for n in (1, 0, 2, 3, 4, 5)], dataset_index=dataset_index)
    assert [line.split("of ")[1][:5] for line in problems(spec)] == ["0.tar", "1.tar"]
    dataset_index.write_bytes(b"?")
    assert "found another or a damaged file" in problems(spec)[0]
    dataset_index.unlink()
    assert problems(spec)[0].startswith(f"{dataset_index}: ")
    assert len(problems(spec)) == 1


def test_damaged_tables_of_keys_are_a_problem(spec: Path) -> None:
    """A dataset index whose tables of keys are damaged is a problem, and hides no repeated key."""
    dataset_index = spec.parent / "train.index"
    write_tar(spec.parent / "5.tar", sample_members(0, 10))
    paths = [spec.parent / f"{number}.tar" for number in range(6)]
    build_spec(paths, dataset_index=dataset_index, on_problem=lambda _: None).save(spec)
    flip(dataset_index, -1)
    damaged = (
        f"{dataset_index}: expected tables of keys, found them damaged; rebuild the dataset index"
    )
    found = problems(spec)
    assert found[1:] == [damaged]
    assert "10 keys occur in several shards" in found[0]
    document = json.loads(spec.read_text())
    spec.write_text(json.dumps(document | {"shardlist": document["shardlist"][:5]}))
    assert problems(spec) == [damaged]  # as while an append is under way


def test_remote_shards_are_verified(server: Server, spec: Path) -> None:
    """The same words with URLs, and no secret is shown."""
    flip(spec.parent / "1.tar", 600)
    for path in spec.parent.iterdir():
        if path.name != "3.tar":
            server.page(f"/{path.name}", path.read_bytes())

    found = problems(f"{server.url}/train.json?t=secret")

    assert len(found) == 2
    assert found[0].startswith(f"{server.url}/1.tar?…: the spec says the sha256")
    assert found[1].startswith(f"{server.url}/3.tar?…: ")
    assert "404" in found[1]
    assert "secret" not in "".join(found)


def test_the_caller_hears_what_will_be_downloaded(server: Server, spec: Path) -> None:
    """An error ends the work before anything is read."""
    urls = [server.page(f"/{n}.tar", (spec.parent / f"{n}.tar").read_bytes()) for n in range(2)]
    costs: list[DownloadCost] = []
    assert problems(urls, on_cost=costs.append) == []
    assert [cost.nbytes for cost in costs] == [
        sum((spec.parent / f"{n}.tar").stat().st_size for n in range(2))
    ]
    num_sent = server.num_sent

    def refuse(_: DownloadCost) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        problems(urls, on_cost=refuse)
    assert server.num_sent == num_sent
    assert problems(spec, on_cost=refuse) == []  # local shards cost nothing


def test_processes_return_the_same(spec: Path) -> None:
    """Processes return the same lines in the same order."""
    flip(spec.parent / "1.tar", 600)
    flip(spec.parent / "4.tar", 3)
    with ProcessPoolExecutor(2) as executor:
        assert problems(spec, executor=executor) == problems(spec)
    assert len(problems(spec)) == 2
