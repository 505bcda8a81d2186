"""The pages of shards that nobody has indexed, requested without a browser; and what they cost."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from conftest import sample_members, write_tar
from looks import HOSTILE, Client, browsing, peeking, photos, picture, search, tar_of
from loopback import Fault, Server

import wids
from wids.storage.cache.store import Cache

MB = 1_000_000


def publish(server: Server, body: bytes, count: int = 3, **options: Any) -> str:
    """Serve the same body as several shards; return their pattern."""
    for number in range(count):
        server.page(f"/train-{number:06d}.tar", body, **options)
    return f"{server.url}/train-{{000000..{count - 1:06d}}}.tar"


def first_page(client: Client, shard: int = 0) -> tuple[Any, Any, Any]:
    """Request what the page requests at first."""
    client.get()
    client.get("app.js")
    return (
        client.json("about"),
        client.json(f"shard/{shard}/about"),
        client.json(f"shard/{shard}/samples?start=0&count=48"),
    )


@pytest.mark.parametrize(
    ("nbytes", "kind", "num_cards"),
    [
        pytest.param(110_000, "jpg", 48, id="photos"),
        pytest.param(1_500_000, "jpg", 4, id="large photos", marks=pytest.mark.long),
        pytest.param(8_000_000, "mp4", 13, id="films", marks=pytest.mark.long),
    ],
)
def test_the_first_page_of_64_shards_of_100_mb(
    server: Server, nbytes: int, kind: str, num_cards: int
) -> None:
    """It costs under 10 MB and a second of server time, whatever the members are."""
    body = tar_of(photos(nbytes, kind=kind), 100 * MB)
    pattern = publish(server, body, 64)
    with peeking(pattern) as client:
        # Of this process, which has the client and both servers, on however busy a machine.
        start_s = time.process_time()
        about, shard, page = first_page(client)
        elapsed_s = time.process_time() - start_s
        assert (about["num_samples"], about["num_shards"]) == (None, 64)
        assert shard["cost"].startswith("reads about")
        assert len(page["cards"]) == num_cards
        assert server.num_sent < 10 * MB
        assert set(server.requests) == {"/train-000000.tar"}
        assert elapsed_s < 1
        first_nbytes = server.num_sent
        other = client.json("shard/63/samples?start=0&count=48")
        assert len(other["cards"]) == num_cards
        assert server.num_sent - first_nbytes < 10 * MB
        assert set(server.requests) == {"/train-000000.tar", "/train-000063.tar"}


def test_about_and_cards(server: Server) -> None:
    """The page has the command, and cards of the samples that were found, by their position."""
    pattern = publish(server, tar_of(photos(100_000, 60), 10**9))
    with peeking(pattern) as client:
        about, shard, page = first_page(client, 2)
        assert about["command"] == f"wids create '{pattern}' -o train.json"
        assert (about["name"], about["shard"], about["fields"]) == ("train", 0, [])
        assert shard["url"] == f"{server.url}/train-000002.tar"
        assert (shard["num_samples"], shard["known"]) == (None, "10 samples found so far")
        assert "1.0 MB of 6.2 MB were read" in shard["remark"]
        assert [card["index"] for card in page["cards"]] == list(range(48))
        assert "caption 47" in page["cards"][47]["html"]
        assert "47 · p0047" in page["cards"][47]["html"]
        assert HOSTILE not in json.dumps(page)
        rest = client.json(f"shard/2/samples?start={page['next']}&count=48")
        assert [card["index"] for card in rest["cards"]] == list(range(48, 60))
        assert (rest["next"], rest["num_samples"], rest["known"]) == (None, 60, "60 samples")
        assert rest["previous"] == 0


def test_one_sample_and_its_fields(server: Server) -> None:
    """A sample is shown, found by its key, and its fields are saved and played by range."""
    members = [*photos(3 * MB, 4, "mp4"), ("q.txt", b"last")]
    with peeking(publish(server, tar_of(iter(members), 10**9))) as client:
        sample = client.json("shard/1/sample/2")
        assert sample["key"] == "p0002"
        assert f'src="shard/1/field/2/{quote(".mp4", safe="")}"' in sample["html"]
        assert sample["shard"].endswith("train-000001.tar")
        assert (sample["local_index"], sample["previous"], sample["next"]) == (2, 1, 3)
        assert server.num_sent < 1.3 * MB
        status, headers, body = client.get("shard/1/field/2/.mp4", Range="bytes=0-99")
        assert (status, body) == (206, (picture(2) + bytes(100))[:100])
        assert headers["Content-Type"] == "video/mp4"
        assert client.json("shard/1/find?key=p0001") == {"index": 1}
        assert "among those that were read" in client.json("shard/1/find?key=x")["error"]
        assert server.num_sent < 1.5 * MB
        assert "expected an index from 0 to" in client.json("shard/1/sample/5")["error"]


@pytest.mark.parametrize(
    "path", ["shard/3/about", "shard/-1/about", "shard/x", "shard", "x", "y/0"]
)
def test_other_paths_are_errors(server: Server, path: str) -> None:
    """A shard that does not exist is an answer, and nothing is requested for it."""
    with peeking(publish(server, tar_of(photos(10, 3), 10**9))) as client:
        status, _, body = client.get(path)
        assert status == 404
        assert json.loads(body)["error"]
    assert server.log == []


def test_a_shard_is_indexed_on_request(server: Server, tmp_path: Path) -> None:
    """Afterwards its count and its fields are known, and a dataset opens it by range."""
    pattern = publish(server, tar_of(photos(900_000, 40), 10**9))
    with peeking(pattern, cache_dir=tmp_path) as client:
        before = client.json("shard/1/about")
        assert before["cost"].startswith("reads about 2.3 MB in 4")
        status, _, body = client.request("POST", "shard/1/index")
        after = json.loads(body)
        assert (status, after["num_samples"], after["known"]) == (200, 40, "40 samples")
        assert (after["cost"], after["remark"]) == ("", "")
        assert {field["name"] for field in after["fields"]} == {".jpg", ".txt", ".json"}
        assert server.num_sent < 3 * MB
        page = client.json("shard/1/samples?start=36&count=48")
        assert [card["index"] for card in page["cards"]] == [36, 37, 38, 39]
        assert page["next"] is None
        found = search(client, "field=.txt", "shard/1/")
        assert found["found"] == 40
        found = client.json("shard/1/samples?field=.txt&start=30&count=5")
        assert [card["index"] for card in found["cards"]] == [30, 31, 32, 33, 34]
        assert client.json("shard/0/about")["num_samples"] is None
    server.log.clear()
    url = f"{server.url}/train-000001.tar"
    with wids.ShardListDataset([url], access="range", cache_dir=tmp_path) as dataset:
        assert (len(dataset), server.log) == (40, [])


def test_only_the_page_itself_can_index(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A POST needs the token, the name of this machine and no other origin (SEC-56)."""
    monkeypatch.setattr("wids.dataset.peeking.Peek.make_index", lambda _: pytest.fail("indexed"))
    with peeking(publish(server, tar_of(photos(10, 3), 10**9))) as client:
        port = client.parts.port
        for path, headers in (
            ("/shard/0/index", {}),
            ("/wrong/shard/0/index", {}),
            ("shard/0/index", {"Host": "evil.example"}),
            ("shard/0/index", {"Origin": "http://evil.example"}),
            ("shard/0/index", {"Origin": "null"}),
            ("shard/0/index", {"Origin": f"https://127.0.0.1:{port}"}),
        ):
            assert client.request("POST", path, **headers)[0] == 404, (path, headers)
        assert client.get("shard/0/index")[0] == 404
        assert client.request("POST", "shard/7/index")[0] == 404
        assert client.request("POST", "about")[0] == 404
        assert client.request("PUT", "shard/0/index")[0] == 501
    monkeypatch.undo()
    with peeking(publish(server, tar_of(photos(10, 3), 10**9))) as client:
        for host in ("127.0.0.1", "localhost"):
            origin = f"http://{host}:{client.parts.port}"
            assert client.request("POST", "shard/0/index", Origin=origin)[0] == 200


def test_a_dataset_has_nothing_to_index(train: Path) -> None:
    """The pages of an indexed dataset answer no POST."""
    with browsing(train) as client:
        for path in ("", "about", "shard/0/index"):
            assert client.request("POST", path)[0] == 404


@pytest.mark.usefixtures("quick_retries")
def test_problems_are_shown_once(server: Server, tmp_path: Path) -> None:
    """A shard that cannot be shown is one error, with its reason, and others are shown."""
    publish(server, tar_of(photos(10, 3), 10**9))
    server.page("/html.tar", b"<html>log in</html>" * 100)
    server.page("/private.tar", b"", always=Fault(403))
    names = ["/train-000000.tar", "/html.tar", "/private.tar", "/nothing.tar"]
    with peeking([server.url + name for name in names], cache_dir=tmp_path) as client:
        assert client.json("shard/0/about")["known"] == "3 samples"
        html = client.json("shard/1/about")
        assert (html["known"], "HTML or XML" in html["remark"]) == ("0 samples found so far", True)
        assert client.json("shard/1/samples")["cards"] == []
        assert "403" in client.json("shard/2/about")["error"]
        assert "not found" in client.json("shard/3/samples")["error"]
        status, _, body = client.request("POST", "shard/1/index")
        assert (status, "HTML or XML" in body.decode()) == (502, True)


def test_a_cache_that_cannot_be_written(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The index of a shard stays in memory, and the error says why it was not stored."""
    monkeypatch.setattr(Cache, "index_path", lambda *_: "/proc/nowhere/a.index")
    with peeking(publish(server, tar_of(photos(900_000, 4), 10**9)), cache_dir=tmp_path) as client:
        status, _, body = client.request("POST", "shard/0/index")
        assert (status, "cannot be written" in body.decode()) == (502, True)
        assert client.json("shard/0/about")["num_samples"] == 4


def test_servers_without_ranges_say_so(server: Server, tmp_path: Path) -> None:
    """What was read is shown; to index such a shard downloads it, which the page says before."""
    body = tar_of(photos(100_000, 60), 10**9)
    with peeking(publish(server, body, has_ranges=False), cache_dir=tmp_path) as client:
        about = client.json("shard/0/about")
        assert "the server sends whole files only" in about["remark"]
        assert about["cost"] == "downloads 6.2 MB"
        page = client.json("shard/0/samples?start=0&count=120")
        assert (len(page["cards"]), page["next"]) == (30, None)
        assert len(server.log) == 1
        assert json.loads(client.request("POST", "shard/0/index")[2])["num_samples"] == 60
        assert len(server.log) == 2
        assert len(client.json("shard/0/samples?start=0&count=120")["cards"]) == 60


def test_local_shards_beside_remote_ones(server: Server, tmp_path: Path) -> None:
    """A shard that is local is shown as it is, with its count."""
    path = write_tar(tmp_path / "a.tar", sample_members(0, 70))
    pattern = publish(server, tar_of(photos(100_000, 30), 10**9), 1)
    with peeking([path, pattern]) as client:
        assert client.json("about")["command"] == (
            'wids.build_spec(shards, dataset_index="a.index").save("a.json")'
        )
        assert client.json("shard/0/about")["num_samples"] == 70
        assert len(client.json("shard/0/samples?count=120")["cards"]) == 70
        assert client.json("shard/1/about")["num_samples"] is None
