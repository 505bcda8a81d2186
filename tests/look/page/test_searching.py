"""Searches, filters and counts of a page, requested without a browser: results, progress, cost."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import threading
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from conftest import optional, write_tar
from events import LONG_S
from looks import Client, browsing, peeking, search, serving
from loopback import Server

import wids
from wids.cli.main import main
from wids.look.page.pages import Pages
from wids.look.page.questions import Scans
from wids.shards.indexes.dataset_index_writer import write_dataset_index
from wids.shards.tars.index import index_tar
from wids.tables import search as hits_module

SEASONS = ["spring", "summer", "autumn", "winter"]


def members(start: int, stop: int) -> Any:
    """Yield samples of a caption, a class and JSON."""
    for number in range(start, stop):
        key = f"dir/s{number:04d}"
        yield f"{key}.txt", f"Caption {number} in {SEASONS[number % 4].title()}".encode()
        yield f"{key}.cls", str(number % 4).encode()
        facts = {
            "n": number,
            "score": number / 10,
            "note": "caf\u00e9" if number % 9 == 0 else None,
            "parts": [number % 2],
        }
        yield f"{key}.json", json.dumps(facts).encode()
        if number % 5 == 0:
            yield f"{key}.npy", b"x"


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The spec of 100 samples in three shards, with names of classes."""
    folder = tmp_path_factory.mktemp("seasons")
    edges = [0, 40, 80, 100]
    shards = [
        write_tar(folder / f"s-{number}.tar", members(*edges[number : number + 2]))
        for number in range(3)
    ]
    path = folder / "seasons.json"
    wids.build_spec(shards, name="seasons", dataset_index=folder / "seasons.index").save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "classes": SEASONS}))
    return path


@pytest.fixture(scope="module")
def saved(spec: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The spec of the same samples, with a saved table."""
    optional("pyarrow")
    copy = tmp_path_factory.mktemp("saved") / "seasons" / spec.name
    shutil.copytree(spec.parent, copy.parent)
    columns = "label=.cls,score=.json/score,note=.json/note,parts=.json/parts"
    table = copy.with_name("t.parquet")
    assert main(["table", str(copy), "--columns", columns, "--output", str(table)]) == 0
    return copy


def query_of(q: str = "", where: Any = (), **others: Any) -> str:
    return urlencode({"q": q, "where": json.dumps(list(where)), **others})


def found(client: Client, query: str, prefix: str = "") -> list[int]:
    """Return the samples that a search finds."""
    answer = search(client, query, prefix)
    assert (answer["state"], answer["problem"]) == ("done", "")
    page = client.json(f"{prefix}samples?count=120&{query}")
    assert page["num_found"] == answer["found"]
    return [card["index"] for card in page["cards"]]


@pytest.mark.parametrize(
    ("q", "wanted"),
    [
        ("s0012", [12]),  # a key
        ("CAPTION 7", [n for n in range(100) if "7" in str(n)]),
        ('"caption 7"', [7, *range(70, 80)]),
        ("autumn s001", [10, 14, 18]),  # one word in the caption, one in the key
        ("café", list(range(0, 100, 9))),  # which JSON writes as an escape
        ("nowhere", []),
    ],
)
def test_search(spec: Path, q: str, wanted: list[int]) -> None:
    """All words occur in key or texts, in any case; quotes keep words together."""
    with browsing(spec) as client:
        assert found(client, query_of(q)) == wanted


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ([{"column": ".cls", "value": "2"}], list(range(2, 100, 4))),
        ([{"column": ".json/score", "low": 9.5, "high": None}], [95, 96, 97, 98, 99]),
        ([{"column": ".json/n", "low": 3, "high": 5}], [3, 4, 5]),
        ([{"column": ".json/note", "value": "café"}], list(range(0, 100, 9))),
        (
            [{"column": ".json/note", "value": None}, {"column": ".json/n", "low": 0, "high": 3}],
            [1, 2, 3],
        ),
        ([{"column": ".json/none", "value": "1"}], []),
    ],
)
def test_filters(spec: Path, where: list[Any], wanted: list[int]) -> None:
    """Samples have the value of a column, or a number in a range, or none."""
    with browsing(spec) as client:
        assert found(client, query_of(where=where)) == wanted


def test_comparisons_as_they_are_typed(spec: Path, tmp_path: Path) -> None:
    """A page takes the conditions of `wids rewrite --where`, and that takes those of a page."""
    typed, listed = ".cls == 2 and .json/n < 12", '[{"column": ".json/n", "low": 3, "high": 5}]'
    with browsing(spec) as client:
        assert found(client, urlencode({"where": typed})) == [2, 6, 10]
    optional("pyarrow")
    out = str(tmp_path / "some")
    assert main(["rewrite", str(spec), out, "--where", listed]) == 0
    with wids.ShardListDataset(f"{out}.json") as dataset:
        assert dataset.table([".json/n"])[".json/n"].to_pylist() == [3, 4, 5]


@pytest.mark.parametrize("name", ["spec", "saved"])
def test_indices_and_keys(name: str, request: pytest.FixtureRequest) -> None:
    """They are columns of a scan too, also beside a saved table, and of a list."""
    with browsing(request.getfixturevalue(name)) as client:
        for where, wanted in [
            ("__index__ < 3", [0, 1, 2]),
            ("__index__ > 41 and .cls == 2 and .json/n < 50", [42, 46]),
            ("__key__ == 'dir/s0050'", [50]),
            ('[{"column": "__key__", "value": "dir/s0050"}]', [50]),
            ('[{"column": "__index__", "low": 39, "high": 40}]', [39, 40]),
        ]:
            assert found(client, urlencode({"where": where})) == wanted


def test_conditions_together(spec: Path) -> None:
    """All conditions hold at once, and a seed orders what they find."""
    where = [{"column": ".cls", "value": "0"}]
    with browsing(spec) as client:
        query = query_of("spring", where, field=".npy")
        assert found(client, query) == [0, 20, 40, 60, 80]
        shuffled = client.json(f"samples?count=9&seed=3&{query}")
        order = [card["index"] for card in shuffled["cards"]]
        assert sorted(order) == [0, 20, 40, 60, 80] != order
        place = client.json(f"sample/{order[2]}?seed=3&{query}")
        assert (place["position"], place["previous"], place["next"]) == (2, order[1], order[3])


@pytest.mark.parametrize(
    "where", ["x", "{}", "[1]", '[{"value": 1}]', '[{"column": "a", "low": "NaN"}]', "[" * 5000]
)
def test_malformed_filters_are_answers(spec: Path, where: str) -> None:
    """Filters that nobody can read are an error that shows their form."""
    with browsing(spec) as client:
        status, _, body = client.get(f"samples?{urlencode({'where': where})}")
        assert (status, "or a list such as" in json.loads(body)["error"]) == (404, True)


def test_nothing_is_searched_unasked(spec: Path) -> None:
    """The address of a search starts nothing: only a POST does, with the token (SEC-56)."""
    with browsing(spec) as client:
        query = query_of("caption")
        assert client.json(f"hits?{query}")["state"] == "new"
        assert client.json(f"samples?{query}")["cards"] == []
        path = f"/{'x' * 22}/hits?{query}"
        assert client.request("POST", path)[0] == 404
        assert client.request("POST", f"hits?{query}", Origin="http://evil.example")[0] == 404
        assert client.json(f"hits?{query}")["state"] == "new"
        assert search(client, query)["found"] == 100


def test_a_search_is_stopped_and_continued(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hits so far are shown, and a stopped search continues where it stopped."""
    monkeypatch.setattr("wids.tables.search._BLOCK", 10)
    seen, is_asked_to_stop = [], threading.Event()
    visit, stop = hits_module.Hits.visit, Scans.stop

    def visit_until_stopped(self: Any, start: int, shard: Any, rows: Any) -> bool:
        seen.append(start + int(rows[0]))
        if len(seen) == 4:
            assert is_asked_to_stop.wait(LONG_S)
        return visit(self, start, shard, rows)

    def stop_early(self: Any) -> None:
        if self._latest:  # as the original does first: then the block that is read may end
            self._latest.stop()
        is_asked_to_stop.set()
        stop(self)

    monkeypatch.setattr(hits_module.Hits, "visit", visit_until_stopped)
    monkeypatch.setattr(Scans, "stop", stop_early)
    with browsing(spec) as client:
        query = query_of("caption")
        client.request("POST", f"hits?{query}")
        while len(seen) < 4:
            time.sleep(0.001)
        progress = client.json(f"hits?{query}")
        assert (progress["state"], progress["found"], progress["total"]) == ("running", 30, 100)
        assert len(client.json(f"samples?count=120&{query}")["cards"]) == 30
        # The block that is being read is read to its end.
        client.request("POST", "stop/hits")
        progress = client.json(f"hits?{query}")
        assert (progress["state"], progress["searched"]) == ("stopped", 40)
        assert search(client, query)["found"] == 100
        assert seen == list(range(0, 100, 10))


def test_searches_of_several_shards_follow_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without indexes too, one search runs at a time, of whichever shard (SEC-53)."""
    entered, gate = threading.Event(), threading.Event()
    visit = hits_module.Hits.visit

    def visit_slowly(*arguments: Any) -> bool:
        entered.set()
        gate.wait()
        return visit(*arguments)

    monkeypatch.setattr("wids.tables.search._BLOCK", 2)
    monkeypatch.setattr(hits_module.Hits, "visit", visit_slowly)
    shards = [write_tar(tmp_path / f"{n}.tar", [*members(n * 6, n * 6 + 6)]) for n in range(2)]
    with peeking([str(shard) for shard in shards]) as client:
        query = query_of("caption")
        try:
            for shard in ("shard/0/", "shard/1/"):
                client.json(f"{shard}samples?count=9")
                answer = json.loads(client.request("POST", f"{shard}hits?{query}")[2])
                assert answer["state"] == "running"
                assert entered.wait(LONG_S)
        finally:
            gate.set()
        assert search(client, query, "shard/1/")["found"] == 6
        answer = client.json(f"shard/0/hits?{query}")
        assert (answer["state"], answer["found"]) == ("stopped", 2)


@pytest.mark.long
def test_searches_that_many_start_at_once(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request is answered, one search runs at a time, the last one to its end."""
    monkeypatch.setattr("wids.tables.search._BLOCK", 1)
    num_pages, num_turns = 12, 25
    running, most_running, statuses = set(), [], []

    def visit(self: Any, *arguments: Any) -> bool:
        running.add(self)
        most_running.append(len(running))
        try:
            return original(self, *arguments)
        finally:
            running.discard(self)

    original = hits_module.Hits.visit
    monkeypatch.setattr(hits_module.Hits, "visit", visit)

    def use(client: Client, page: int) -> None:
        query = query_of(f"caption {page % 3}")
        for turn in range(num_turns):
            paths = [("POST", f"hits?{query}"), ("GET", f"hits?{query}"), ("POST", "stop/hits")]
            for method, path in paths[: 3 if turn % 5 == page % 5 else 2]:
                statuses.append(client.request(method, path)[0])
            name = urlencode({"name": (".cls", ".json/n", ".json/note")[(page + turn) % 3]})
            statuses.append(client.request("POST", f"column?{name}")[0])

    with browsing(spec) as client:
        pages = [threading.Thread(target=use, args=(client, page)) for page in range(num_pages)]
        for thread in pages:
            thread.start()
        for thread in pages:
            thread.join()
        assert len(statuses) >= 3 * num_pages * num_turns
        assert set(statuses) == {200}
        answer = search(client, query_of("winter"))
        for number in range(20):  # of which few are kept
            assert search(client, query_of(f"nowhere {number}"))["state"] == "done"
        assert client.json(f"hits?{query_of('winter')}")["state"] == "new"
    assert max(most_running) == 1
    assert (answer["state"], answer["found"], answer["problem"]) == ("done", 25, "")


def test_a_search_that_nobody_follows_ends(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that was closed leaves no search behind."""
    monkeypatch.setattr("wids.look.page.questions._PATIENCE_S", -1)
    with browsing(spec) as client:
        answer = search(client, query_of("caption"))
    assert (answer["state"], answer["searched"]) == ("stopped", 0)


def test_damaged_fields_do_not_end_a_search(tmp_path: Path) -> None:
    """They are counted, and all others are searched."""
    shard = write_tar(tmp_path / "a.tar", [*members(0, 6)])
    wids.build_spec([shard], dataset_index=tmp_path / "a.index").save(tmp_path / "a.json")
    data = shard.read_bytes()
    shard.write_bytes(data.replace(b'{"n": 3', b'["n": 3'))
    with browsing(tmp_path / "a.json") as client:
        where = [{"column": ".json/n", "low": 0, "high": 9}]
        assert found(client, query_of(where=where)) == [0, 1, 2, 4, 5]
        assert search(client, query_of(where=where))["unreadable"] == 1


def test_nothing_is_left_for_the_second_of_two_filters(tmp_path: Path) -> None:
    """The search ends, and finds nothing."""
    with browsing(write_tar(tmp_path / "a.tar", [*members(0, 6)])) as client:
        where = [{"column": ".json/n", "low": 99}, {"column": ".cls", "low": 0}]
        answer = search(client, query_of(where=where))
    assert (answer["state"], answer["found"], answer["problem"]) == ("done", 0, "")


def test_what_is_too_long_to_be_searched_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So are texts of more than 16 kB, and values of more than 1 MB, across shards."""
    monkeypatch.setattr("wids.tables.search.MAX_VALUE_NBYTES", 20_000)
    tale = b"once upon a time " * 1000  # 17 kB
    notes = {n: json.dumps({"a": "b" * length}) for n, length in enumerate((10, 30_000, 10, 10))}
    shards = [
        write_tar(
            tmp_path / f"{at}.tar",
            [
                member
                for n in (at, at + 1)
                for member in ((f"{n}.txt", tale[: 20_000 * n]), (f"{n}.json", notes[n].encode()))
            ],
        )
        for at in (0, 2)
    ]
    wids.build_spec(shards, dataset_index=tmp_path / "a.index").save(tmp_path / "a.json")
    with browsing(tmp_path / "a.json") as client:
        answer = search(client, query_of("upon"))
        assert (answer["found"], answer["too_long"]) == (0, 4)  # three tales and a note
        assert search(client, query_of("1"))["too_long"] == 2  # not what a key already decides
        name = urlencode({"name": ".json/a"})
        counts = client.json(f"column?{name}")
        assert (counts["num_values"], counts["num_nulls"], counts["too_long"]) == (3, 1, 1)


def test_large_values_are_decoded_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block has few samples if their values are large: their memory stays small (SEC-53)."""
    monkeypatch.setattr("wids.tables.search.MAX_VALUE_NBYTES", 100_000)
    value = b'{"n": %d, "parts": [' + b",".join([b"[]"] * 33_000) + b"]}"  # 2 MB when decoded
    members = [(f"{n}.json", value % n) for n in range(10)]
    with browsing(write_tar(tmp_path / "a.tar", members)) as client:
        tracemalloc.start()
        values = {"state": "running"}
        while values["state"] == "running":
            values = client.json(f"column?{urlencode({'name': '.json/n'})}")
        hits = search(client, query_of(where=[{"column": ".json/n", "low": 5}]))
        peak_nbytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (values["num_values"], hits["found"], hits["too_long"]) == (10, 5, 0)
    assert peak_nbytes < 10_000_000


@pytest.mark.long
def test_compressed_values_are_decoded_one_after_another(tmp_path: Path) -> None:
    """Of many small fields, no more than one is decoded and in memory at a time (SEC-53)."""
    value = b'{"n": %d, "parts": [' + b",".join([b"[]"] * 33_000) + b"]}"  # 2 MB when decoded
    members = [(f"{n}.json.gz", gzip.compress(value % n)) for n in range(20)]
    with browsing(write_tar(tmp_path / "a.tar", members)) as client:
        tracemalloc.start()
        values = {"state": "running"}
        while values["state"] == "running":
            values = client.json(f"column?{urlencode({'name': '.json.gz/parts'})}")
        hits = search(client, query_of(where=[{"column": ".json.gz/n", "low": 5}]))
        peak_nbytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (values["num_values"], hits["found"], hits["unreadable"]) == (20, 15, 0)
    assert peak_nbytes < 10_000_000


def test_values_that_are_large_when_decompressed_are_left_out(tmp_path: Path) -> None:
    """The limit of 1 MB holds for what a few compressed bytes become, too (SEC-53)."""
    bomb = io.BytesIO()
    np.savez_compressed(bomb, n=np.zeros(1_000_000, np.uint64))
    members = [
        ("0.json.gz", gzip.compress(b'{"n": 0, "text": "' + b" " * 1_000_000 + b'"}')),
        ("1.json.gz", gzip.compress(b'{"n": 1}')),
        ("2.npz", bomb.getvalue()),
    ]
    with browsing(write_tar(tmp_path / "a.tar", members)) as client:
        for name, num_values in ((".json.gz/n", 1), (".npz/n/0", 0)):
            answer = client.json(f"column?{urlencode({'name': name})}")
            assert (answer["num_values"], answer["unreadable"]) == (num_values, 1)


def test_wide_numbers_of_an_index(tmp_path: Path) -> None:
    """An index whose integers all have 8 bytes, as its author may choose, is searched."""
    data = write_tar(tmp_path / "a.tar", [*members(0, 8)]).read_bytes()
    index = index_tar(data, checksums=True)
    columns = ("key_starts", "member_starts", "blocks", "sizes", "field_ids", "head_blocks")
    wide = replace(index, **{name: getattr(index, name).astype(np.uint64) for name in columns})
    with (tmp_path / "a.index").open("w+b") as file:
        write_dataset_index(file, [("a.tar", len(data), wide)])
    (tmp_path / "a.json").write_text('{"index": "a.index", "shardlist": [{"url": "a.tar"}]}')
    with browsing(tmp_path / "a.json") as client:
        assert client.json("column?name=.cls")["num_values"] == 8
        assert found(client, query_of("7", [{"column": ".cls", "value": "3"}])) == [7]


def test_a_shard_that_cannot_be_searched_is_an_error(tmp_path: Path) -> None:
    """A search ends with the reason, and keeps what it found."""
    shards = [write_tar(tmp_path / f"{n}.tar", [*members(n * 6, n * 6 + 6)]) for n in range(2)]
    wids.build_spec(shards, dataset_index=tmp_path / "a.index").save(tmp_path / "a.json")
    with browsing(tmp_path / "a.json") as client:
        shards[1].write_bytes(b"?" * 2048)
        answer = search(client, query_of("caption"))
    assert (answer["state"], answer["found"], "1.tar" in answer["problem"]) == ("stopped", 6, True)


# Columns.


def test_columns_are_those_of_the_first_samples(spec: Path) -> None:
    """Plain values in their small structures; what is named like a class comes first."""
    with browsing(spec) as client:
        answer = client.json("columns")
    names = [column["name"] for column in answer["columns"]]
    assert sorted(names) == [".cls", ".json/n", ".json/note", ".json/score"]
    assert (answer["first"], answer["problem"]) == (".cls", "")


def test_values_are_counted(spec: Path) -> None:
    """Values with counts and names of classes, or a histogram; None apart."""
    with browsing(spec) as client:
        classes = client.json("column?name=.cls")
        scores = client.json(f"column?{urlencode({'name': '.json/score'})}")
        notes = client.json(f"column?{urlencode({'name': '.json/note'})}")
        assert "no parts" in client.json(f"column?{urlencode({'name': '.txt/a'})}")["error"]
    assert classes["values"] == [
        {"label": str(n), "count": 25, "name": SEASONS[n]} for n in range(4)
    ]
    assert (scores["low"], scores["high"], sum(scores["bins"])) == (0.0, 9.9, 100)
    assert scores["values"] == []
    assert notes["values"] == [{"label": "café", "count": 12}]
    assert notes["num_nulls"] == 88


def test_numbers_that_no_histogram_can_hold(tmp_path: Path) -> None:
    """NaN, infinities and integers beyond any float leave the others their histogram."""
    odd = ["NaN", "Infinity", "-Infinity", "1" + "0" * 400]
    texts = [*odd, *map(str, range(36))]
    members = [
        (f"{n}.json", f'{{"some": {text}, "all": {odd[n % 4]}}}'.encode())
        for n, text in enumerate(texts)
    ]
    with browsing(write_tar(tmp_path / "a.tar", members)) as client:
        some = client.json(f"column?{urlencode({'name': '.json/some'})}")
        every = client.json(f"column?{urlencode({'name': '.json/all'})}")
        indices = found(client, query_of(where=[{"column": ".json/some", "low": 30}]))
    assert (some["low"], some["high"], sum(some["bins"])) == (0.0, 35.0, 36)
    assert (some["num_values"], some["num_distinct"]) == (40, 40)
    assert indices == [1, 3, *range(34, 40)]
    assert not every["is_numeric"]
    assert [value["count"] for value in every["values"]] == [10] * 4


@pytest.mark.parametrize("is_saved", [False, True])
def test_long_texts_that_begin_alike_stay_apart(tmp_path: Path, is_saved: bool) -> None:
    """Values that are too long for a label have one each, by which they are found."""
    if is_saved:
        optional("pyarrow")
    start = "once upon a time " * 20
    texts = [start + "a fox", start + "a hen", start + "a hen", start]
    members = [(f"{n}.json", json.dumps({"tale": text}).encode()) for n, text in enumerate(texts)]
    spec = tmp_path / "tales.json"
    tar = write_tar(tmp_path / "tales.tar", members)
    wids.build_spec([tar], dataset_index=tmp_path / "tales.index").save(spec)
    if is_saved:
        columns = "--columns", "tale=.json/tale"
        assert main(["table", str(spec), *columns, "-o", str(tmp_path / "t.parquet")]) == 0
    name = "tale" if is_saved else ".json/tale"
    with browsing(spec) as client:
        values = client.json(f"column?{urlencode({'name': name})}")["values"]
        assert [value["count"] for value in values] == [2, 1, 1]
        assert all(value["label"].startswith(start[:60] + "…") for value in values)
        indices = [
            found(client, query_of(where=[{"column": name, "value": value["label"]}]))
            for value in values
        ]
    assert indices == [[1, 2], [0], [3]]


def test_integers_that_are_too_long_for_a_label(tmp_path: Path) -> None:
    """They are listed in order beside other numbers, and those that differ stay apart."""
    texts = ["1" + "0" * 400, "-1" + "0" * 400, "5", "1" + "0" * 399 + "1"]
    members = [(f"{n}.json", f'{{"n": {text}}}'.encode()) for n, text in enumerate(texts)]
    with browsing(write_tar(tmp_path / "a.tar", members)) as client:
        values = client.json(f"column?{urlencode({'name': '.json/n'})}")["values"]
    assert [value["label"][:2] for value in values] == ["-1", "5", "10", "10"]


def test_many_samples_are_counted_on_request(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond 10,000 samples nothing is counted before it is asked for."""
    monkeypatch.setattr("wids.look.page.questions._MAX_UNASKED", 99)
    monkeypatch.setattr("wids.look.page.tally.MAX_TALLIED", 50)
    monkeypatch.setattr("wids.tables.search._BLOCK", 10)
    with browsing(spec) as client:
        answer = client.json("column?name=.cls")
        assert (answer["state"], answer["searched"], answer["total"]) == ("new", 0, 100)
        answer = json.loads(client.request("POST", "column?name=.cls")[2])
        while answer["state"] == "running":
            answer = client.json("column?name=.cls")
        assert (answer["state"], answer["searched"], answer["num_values"]) == ("done", 50, 50)


def test_classes_can_be_chosen_before_they_are_counted(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All names of the spec are listed at once, however many; the counts follow."""
    monkeypatch.setattr("wids.look.page.questions._MAX_UNASKED", 99)
    monkeypatch.setattr("wids.look.page.tally.MAX_TALLIED", 50)
    monkeypatch.setattr("wids.tables.search._BLOCK", 10)
    names = [*SEASONS, *(f"season {n}" for n in range(4, 90))]
    named = spec.with_name("named.json")
    named.write_text(json.dumps({**json.loads(spec.read_text()), "classes": names}))
    with browsing(named) as client:
        values = client.json("column?name=.cls")["values"]
        assert [value["name"] for value in values] == names
        assert {value["count"] for value in values} == {None}
        assert client.json(f"column?{urlencode({'name': '.json/n'})}")["values"] == []
        assert found(client, query_of(where=[{"column": ".cls", "value": "2"}])) == [
            *range(2, 100, 4)
        ]
        answer = json.loads(client.request("POST", "column?name=.cls")[2])
        while answer["state"] == "running":
            answer = client.json("column?name=.cls")
    # Half of the samples are counted, so that nothing is known of the other classes.
    assert [value["count"] for value in answer["values"]] == [13, 13, 12, 12, *[None] * 86]


def test_many_classes_are_listed_and_no_histogram(tmp_path: Path) -> None:
    """Numbers of classes with names are not drawn as if their size meant something."""
    shard = write_tar(tmp_path / "a.tar", [(f"{n:03d}.cls", b"%d" % (n % 70)) for n in range(140)])
    document = wids.build_spec([shard], dataset_index=tmp_path / "a.index").document(str(tmp_path))
    for number, classes in enumerate(([], [f"class {n}" for n in range(99)])):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps({**document, "classes": classes}))
        with browsing(path) as client:
            answer = client.json("column?name=.cls")
        # Those that no sample has are not listed once all are counted.
        listed = [(value["name"], value["count"]) for value in answer["values"]]
        assert listed == [(name, 2) for name in classes[:70]]
        assert bool(answer["bins"]) is not bool(classes)


def test_every_answer_states_how_far_it_is(saved: Path) -> None:
    """Searches and counts have one form, whether they are new, done, or need no search."""
    progress = {"state", "total", "searched", "unreadable", "too_long", "problem"}
    with browsing(saved) as client:
        query = query_of("caption")
        hits = [client.json(f"hits?{each}") for each in (query, query_of())]
        hits.append(search(client, query))
        values = [client.json("column?name=label"), client.json("column?name=.cls")]
    assert [answer["state"] for answer in (*hits, *values)] == ["new", *["done"] * 4]
    assert [answer["searched"] for answer in (*hits, *values)] == [0, 100, 100, 100, 100]
    assert {frozenset(answer) for answer in hits} == {frozenset((*progress, "found"))}
    assert len({frozenset(answer) - {"low", "high"} for answer in values}) == 1
    assert all(progress <= set(answer) for answer in values)


def test_a_saved_table_answers_without_a_shard(saved: Path, tmp_path: Path) -> None:
    """Filters and counts of its columns read no tar; other conditions read what it leaves.

    The tars are gone.
    """
    shutil.copytree(saved.parent, tmp_path, dirs_exist_ok=True)
    for tar in tmp_path.glob("*.tar"):
        tar.rename(tar.with_suffix(".gone"))
    with browsing(tmp_path / saved.name) as client:
        answer = client.json("columns")
        columns = [column["name"] for column in answer["columns"] if column["saved"]]
        assert columns == ["label", "score", "note", "parts"]
        assert answer["first"] == "label"
        label = client.json("column?name=label")
        assert [value["count"] for value in label["values"]] == [25] * 4
        assert label["values"][1]["name"] == "summer"
        assert sum(client.json("column?name=score")["bins"]) == 100
        parts = client.json("column?name=parts")  # by their labels, as a scan counts them
        assert [value["count"] for value in parts["values"]] == [50, 50]
        where = [{"column": "label", "value": "1"}, {"column": "score", "low": 9, "high": 9.5}]
        assert search(client, query_of(where=where))["found"] == 1  # 93
        typed = urlencode({"where": "label == 1 and score >= 9 and score <= 9.5"})
        assert search(client, typed)["found"] == 1
        wrong = json.loads(
            client.request("POST", f"hits?{urlencode({'where': 'score == true'})}")[2]
        )
        assert "where: score: expected a value to compare double with" in wrong["error"]
        where = [{"column": "note", "value": None}]
        assert search(client, query_of(where=where))["found"] == 88
        where = [{"column": "score", "low": 4.5, "high": 4.7}]
        (tmp_path / "s-1.gone").rename(tmp_path / "s-1.tar")
        assert search(client, query_of("caption", where))["found"] == 3  # in that shard alone


def test_a_stale_table_is_not_used(spec: Path, tmp_path: Path) -> None:
    """The reason is stated beside the columns, which are read from samples instead."""
    document = json.loads(spec.read_text())
    document["table"] = {"url": "t.parquet", "fingerprint": "0" * 32}
    document["base"] = str(spec.parent)
    path = spec.with_name("stale.json")
    path.write_text(json.dumps(document))
    with browsing(path) as client:
        answer = client.json("columns")
        assert "wids table" in answer["problem"]
        assert ".cls" in [column["name"] for column in answer["columns"]]
        assert found(client, query_of(where=[{"column": ".cls", "value": "3"}]))[:2] == [3, 7]
    assert not (tmp_path / "t.parquet").exists()


def test_a_remote_search_reads_texts_alone(server: Server, tmp_path: Path) -> None:
    """Of remote shards the fields that are searched are read by range."""
    big = [*members(0, 30), *((f"dir/s{n:04d}.bin", bytes(50_000)) for n in range(30))]
    shard = write_tar(tmp_path / "a.tar", big)
    wids.build_spec([shard], dataset_index=tmp_path / "a.index").save(tmp_path / "a.json")
    for path in (shard, tmp_path / "a.index", tmp_path / "a.json"):
        server.page(f"/{path.name}", path.read_bytes())
    with browsing(f"{server.url}/a.json") as client:
        assert client.json("column?name=.cls")["state"] == "new"
        before = server.num_sent
        assert found(client, query_of("summer")) == list(range(1, 30, 4))
        assert server.num_sent - before < 200_000
    assert not [r for r in server.log if r.path.endswith(".tar") and r.range is None]


def test_known_samples_of_a_shard_are_searched(server: Server, tmp_path: Path) -> None:
    """Without an index those are searched that were found so far; then the others."""
    body = write_tar(
        tmp_path / "a.tar",
        [m for n in range(60) for m in (*members(n, n + 1), (f"dir/s{n:04d}.bin", bytes(60_000)))],
    )
    url = server.page("/a.tar", body.read_bytes())
    with peeking(url) as client:
        client.json("shard/0/samples?count=8")
        first = search(client, query_of("caption"), "shard/0/")
        assert 0 < first["found"] == first["total"] < 60
        client.request("POST", "shard/0/index")
        later = client.json(f"shard/0/hits?{query_of('caption')}")
        assert (later["state"], later["total"]) == ("stopped", 60)
        assert search(client, query_of("caption"), "shard/0/")["found"] == 60
        assert client.json("shard/0/column?name=.cls")["state"] == "new"
        names = [column["name"] for column in client.json("shard/0/columns")["columns"]]
        assert ".cls" in names


def test_the_browser_stops_searches_when_it_closes(spec: Path) -> None:
    """No thread is left behind."""
    with wids.ShardListDataset(spec) as dataset, serving(Pages(dataset)) as client:
        client.request("POST", f"hits?{query_of('caption')}")
    assert [t for t in threading.enumerate() if t.name == "wids-scan"] == []


def test_conditions_have_limits(spec: Path) -> None:
    """A query is small: twenty words, of which quotes keep some together, and twenty filters."""
    where = [{"column": ".cls", "value": "2"}]
    with browsing(spec) as client:
        assert found(client, query_of('caption "in autumn" ' * 10, where * 20))[:2] == [2, 6]
        for query in (query_of("a " * 21), query_of(where=where * 21)):
            assert "at most 20 words" in client.json(f"samples?{query}")["error"]


@pytest.mark.parametrize(
    ("accepted", "wanted"), [({"low": 1, "high": 2}, [1]), ({"value": "true"}, [0])]
)
def test_truth_values_are_no_numbers(tmp_path: Path, accepted: Any, wanted: list[int]) -> None:
    """`true` is not in a range of numbers, and neither `1` nor `"1"` is `true`."""
    members = [(f"{n}.json", b'{"n": %s}' % v) for n, v in enumerate((b"true", b"1", b'"1"'))]
    with browsing(write_tar(tmp_path / "a.tar", members)) as client:
        query = query_of(where=[{"column": ".json/n", **accepted}])
        assert found(client, query) == wanted
