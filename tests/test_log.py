"""The log: each event of the table in docs/errors.md, as it happens with real servers."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
from conftest import sample_members, settle, write_shards, write_tar
from loopback import Fault, Server
from s3 import Bucket

import wids
from wids.storage import upload
from wids.storage.cache.cache_names import RemoteFile
from wids.storage.cache.store import Cache
from wids.storage.fetch import Fetcher
from wids.storage.transport.request_limit import FIRST

EVENTS = re.findall(
    r"^\| `([^`]+)` \| (INFO|WARNING|DEBUG) \| `([^`]+)` \|",
    (Path(__file__).parent.parent / "docs" / "errors.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)
"""Message, level and logger of each event that the page documents."""


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is logged from INFO on."""
    caplog.set_level(logging.INFO, "wids")
    return caplog


def happened(log: pytest.LogCaptureFixture, *messages: str) -> None:
    """Each message was logged, with the level and under the logger that the page states."""
    assert "SECRET" not in log.text
    for message in messages:
        (event,) = [event for event in EVENTS if message in event[0]]
        pattern = re.compile(".*".join(map(re.escape, event[0].split("…"))), re.DOTALL)
        found = [
            (record.levelname, record.name)
            for record in log.records
            if pattern.search(record.getMessage())
        ]
        assert found, (event, log.text)
        assert {level for level, _ in found} == {event[1]}
        assert all(f"{name}.".startswith(f"{event[2]}.") for _, name in found), found


def served(server: Server, folder: Path) -> str:
    """Serve a spec of two shards; return its signed URL."""
    spec = write_shards(folder, [4, 4])
    for path in (spec, *folder.glob("*.tar")):
        server.page(f"/{path.name}", path.read_bytes())
    return f"{server.url}/train.json?SECRET"


def test_downloads(server: Server, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    """A shard that is downloaded has a line when it begins, when it is indexed and at its end."""
    with wids.ShardListDataset(served(server, tmp_path), access="download") as dataset:
        assert dataset[0][".txt"] == "text 0"
    happened(log, "…: downloading", ": indexed,", ": downloaded,")


def test_evictions(server: Server, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    """So has a copy that is evicted."""
    store = Cache(str(tmp_path / "cache"), Fetcher(), limit_nbytes=1500)
    for name in "ab":
        store.open(RemoteFile(server.page(f"/{name}", bytes(1000)), 1000)).file.close()
    happened(log, ": evicted,")


def test_local_shards(train: Path, log: pytest.LogCaptureFixture) -> None:
    """A local shard without an index is indexed once."""
    for path in train.parent.glob("*.tar"):
        settle(path)
    for _ in range(2):
        with wids.ShardListDataset(train) as dataset:
            assert dataset[0]["__key__"] == "s00000"
    happened(log, ": indexed,")
    assert log.text.count(": indexed,") == 1


@pytest.mark.usefixtures("quick_retries")
def test_refusals(server: Server, log: pytest.LogCaptureFixture) -> None:
    """A server that refuses a request, and one that is away, are named with what follows."""
    url = server.page("/a", b"abc", faults=[Fault(503)] * 12)
    assert Fetcher().read(url, 10) == b"abc"
    happened(log, "it refused a request", "; waiting up to", "answers again, after")
    assert f"at most {FIRST // 2} at a time now" in log.text


def test_whole_files(server: Server, log: pytest.LogCaptureFixture) -> None:
    """A server that sends whole files only has one warning."""
    url = server.page("/a.tar", bytes(100_000), has_ranges=False)
    fetcher = Fetcher()
    for _ in range(2):
        assert fetcher.read_start(f"{url}?SECRET", 1000).data == bytes(1000)
    happened(log, "the server sends whole files only")
    assert len(log.records) == 1


def test_bytes_that_are_others(
    server: Server, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    """A download that is not what the spec states is made once more."""
    spec = json.loads(write_shards(tmp_path, [4]).read_text())
    (shard,) = spec["shardlist"]
    body = (tmp_path / shard["url"]).read_bytes()
    shard["filesize"] = len(body)
    server.page(f"/{shard['url']}", body, faults=[Fault(after_nbytes=600, how="short")])
    with wids.ShardListDataset(spec, base=server.url, access="download") as dataset:
        assert dataset[0][".txt"] == "text 0"
    happened(log, "; fetching it once more")


def test_what_tars_have(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    """A tar without an end marker has a warning, and one that others follow has a line."""
    whole = write_tar(tmp_path / "a.tar", sample_members(0, 2)).read_bytes()
    more = write_tar(tmp_path / "a.tar", sample_members(2, 4)).read_bytes()
    (tmp_path / "a.tar").write_bytes(whole + more[: 8 * 512])
    with wids.ShardListDataset(str(tmp_path / "a.tar")) as dataset:
        assert len(dataset) == 4
    happened(log, "another archive", "no end marker")


def test_the_spec_of_a_folder(train: Path, log: pytest.LogCaptureFixture) -> None:
    """A spec that is found beside the shards of a folder is named."""
    assert len(wids.ShardListDataset(str(train.parent))) == 20
    happened(log, ": used as the spec of its folder")


def test_counting(server: Server, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    """Shards that are downloaded to be counted are announced, with their bytes."""
    served(server, tmp_path)
    pattern = f"{server.url}/train-{{000000..000001}}.tar?SECRET"
    with wids.ShardListDataset(pattern, access="download") as dataset:
        assert len(dataset) == 8
    happened(log, "counting samples: downloading")


def test_an_index_that_cannot_be_used(train: Path, log: pytest.LogCaptureFixture) -> None:
    """A dataset index that is damaged is named with its damage."""
    spec = wids.build_spec(str(train.parent / "*.tar"), dataset_index=str(train.parent / "a.index"))
    (train.parent / "a.index").write_bytes(b"damaged")
    with wids.ShardListDataset(spec) as dataset:
        assert dataset[0][".cls"] == 0
    happened(log, ": no index that can be used")


def test_requests(
    server: Server,
    bucket: Bucket,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Reading, asking, writing, listing and deleting are a line each, with what they took."""
    for name, value in bucket.environment().items():
        monkeypatch.setenv(name, value)
    caplog.set_level(logging.DEBUG, "wids")
    with upload.publishing(f"s3://{bucket.name}/a.tar") as file:
        file.write(bytes(1000))
    fetcher = Fetcher()
    assert fetcher.nbytes(f"s3://{bucket.name}/a.tar") == 1000
    assert [entry.name for entry in fetcher.entries(f"s3://{bucket.name}/")] == ["a.tar"]
    upload.remove(f"s3://{bucket.name}/a.tar")
    signed = server.page("/a", b"abc") + "?SECRET"
    assert fetcher.read(signed, 10) == b"abc"

    happened(caplog, "bytes in")
    lines = [r.getMessage() for r in caplog.records if " bytes in " in r.getMessage()]
    assert [line.partition(" bytes in ")[0] for line in lines] == [
        f"PUT s3://{bucket.name}/a.tar: done, 1000",
        f"GET s3://{bucket.name}/a.tar: status 206, 1",
        f"LIST s3://{bucket.name}/: done, 0",
        f"DELETE s3://{bucket.name}/a.tar: done, 0",
        f"GET {server.url}/a?…: status 200, 3",
    ]


def test_every_event_is_tested() -> None:
    """The table of the page has no event that no test above causes."""
    calls = re.findall(r"^    happened\((.*)\)$", Path(__file__).read_text(), re.MULTILINE)
    parts = [part for call in calls for part in re.findall(r'"([^"]+)"', call)]
    assert len(EVENTS) > 10
    assert [message for message, *_ in EVENTS if not any(p in message for p in parts)] == []
