"""JSON documents and the other forms of ``shards`` → ``DatasetSpec``."""

from __future__ import annotations

import copy
import io
import json
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Server, raises

from wids import (
    DatasetSpec,
    FetchError,
    NotFoundError,
    ShardListDataset,
    ShardSpec,
    SpecError,
    load_spec,
)
from wids.shards.specs import parsing
from wids.shards.specs.documents import MAX_DOCUMENTS
from wids.shards.specs.entries import MAX_DEPTH

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "specs.json").read_text())


class Documents:
    """Returns documents from a dict instead of reading files."""

    def __init__(self, documents: dict[str, Any]) -> None:
        self.documents = documents

    def __call__(self, url: str, limit_nbytes: int) -> bytes:
        assert limit_nbytes > 0
        data = self.documents[url]
        return data if isinstance(data, bytes) else json.dumps(data).encode()


def load(document: Any, at: str = "/data/d.json", **others: Any) -> DatasetSpec:
    """Load a document as if it were the file ``at``, with others around it."""
    documents = {at: document, **others.pop("others", {})}
    return load_spec(at, read=Documents(documents), **others)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["name"])
def test_form_in_the_wild_is_resolved(golden: dict[str, Any]) -> None:
    """Every form that projects use has these URLs, counts, sizes and names (SPEC-1, SPEC-6)."""
    spec = load(
        golden["document"], golden.get("at", "/data/d.json"), others=golden.get("others", {})
    )

    assert [[s.url, s.num_samples, s.nbytes, s.dataset] for s in spec.shards] == golden["shards"]
    assert spec.name == golden["document"].get("name", "")


def test_extras_are_kept_and_written_back() -> None:
    """Keys that wids does not interpret are written back unchanged (SPEC-2)."""
    document = next(g["document"] for g in GOLDEN if g["name"] == "extras")

    spec = load(document)

    assert spec.extras["shuffle"] == {"seed": 1}
    assert spec.shards[0].extras == {"lang": "en"}
    assert spec.document("/data") == {"__kind__": "wids-shard-index-v1", **document}


def test_every_form_of_shards_gives_the_same(tmp_path: Path, server: Server) -> None:
    """Path, text, URL, file, parsed document, pattern, and lists of four kinds (SPEC-14)."""
    names = [f"t-{i:06d}.tar" for i in range(3)]
    document = {"wids_version": 1, "shardlist": [{"url": n, "nsamples": 4} for n in names]}
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document))
    paths = [str(tmp_path / name) for name in names]
    counted = tuple(ShardSpec(path, 4) for path in paths)

    assert load_spec(path).shards == counted
    assert load_spec(str(path)).shards == counted
    assert load_spec(path.as_uri()).shards == counted
    with open(path, encoding="utf-8") as text, open(path, "rb") as binary:
        assert load_spec(text).shards == load_spec(binary).shards == counted
    assert load_spec(io.StringIO(path.read_text()), base=tmp_path).shards == counted
    assert load_spec(document, base=tmp_path).shards == counted
    assert load_spec(server.page("/t.json", document), base=tmp_path).shards == counted
    assert load_spec([(name, 4) for name in paths]).shards == counted
    assert load_spec([(Path(name), 4) for name in paths]).shards == counted
    assert load_spec([{"url": name, "nsamples": 4} for name in paths]).shards == counted
    assert load_spec([path]).shards == counted
    assert load_spec(counted).shards == counted
    assert load_spec(load_spec(path)).shards == counted

    bare = tuple(ShardSpec(path) for path in paths)
    assert load_spec(str(tmp_path / "t-{000000..000002}.tar")).shards == bare
    assert load_spec("t-{000000..000002}.tar", base=tmp_path).shards == bare
    assert load_spec(paths).shards == bare
    assert load_spec(Path(paths[0])).shards == bare[:1]


def test_relative_paths_start_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller's relative path is made absolute, so a later chdir changes nothing.

    SPEC-10.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.json").write_text('{"shardlist": ["a.tar"]}')

    for shards in ("a.tar", ["a.tar"], "d.json", {"shardlist": ["a.tar"]}):
        assert load_spec(shards).shards == (ShardSpec(str(tmp_path / "a.tar")),)


def test_inputs_are_never_edited() -> None:
    """Loading a document twice has the same result; the old library edited it."""
    document = {
        "base": "sub",
        "shardlist": [{"url": "a.tar", "nsamples": 1}],
        "datasets": [{"base": "x", "shardlist": [{"url": "b.tar"}]}],
    }
    before = copy.deepcopy(document)

    first, second = load_spec(document, base="/d"), load_spec(document, base="/d")

    assert document == before
    assert [s.url for s in first.shards] == [s.url for s in second.shards]
    assert [s.url for s in first.shards] == ["/d/a.tar", "/d/x/b.tar"]


def test_pipes_are_unchanged() -> None:
    """A command is neither joined with a base nor normalised (SPEC-9, SPEC-13, SEC-1)."""
    command = "pipe:curl -s https://h//x/../a.tar | cat"
    document = {"base": "/b", "shardlist": [{"url": command}]}

    assert load(document, allow_pipe=True).shards[0].url == command
    assert load_spec([command]).shards[0].url == command, "the caller may name commands"
    with raises(SpecError, "names the command pipe:curl …", "only with allow_pipe=True"):
        load(document)


@pytest.mark.parametrize("shard", ["/etc/passwd.tar", "file:///etc/x.tar"])
def test_remote_document_may_not_name_local_files(shard: str) -> None:
    """A document from elsewhere cannot name local files (SPEC-12, SEC-2)."""
    at = "https://h/d.json"
    # In a remote document an absolute path is a path on its server.
    if shard.startswith("/"):
        assert load({"shardlist": [shard]}, at).shards[0].url == f"https://h{shard}"
    else:
        with raises(SpecError, "https://h/d.json: names", "a local file"):
            load({"shardlist": [shard]}, at)
    with raises(SpecError, "a local file"):
        load({"base": "file:///etc", "shardlist": ["x.tar"]}, at)
    with raises(SpecError, "a local file"):
        load({"datasets": [{"source_url": "file:///etc/x.json"}]}, at)


def test_remote_document_with_a_local_mirror() -> None:
    """With a local base a document may name local files, but only inside it (SPEC-6, SPEC-12)."""
    at = "https://h/d.json"
    nested = {"datasets": [{"base": "sub", "shardlist": ["a.tar"]}]}

    assert load({"shardlist": ["a.tar"]}, at, base="/m").shards[0].url == "/m/a.tar"
    assert load(nested, at, base="/m").shards[0].url == "/m/sub/a.tar"
    for escape in ("../a.tar", "/etc/a.tar", "~/a.tar", "file:///etc/a.tar"):
        with raises(SpecError, "a local file"):
            load({"shardlist": [escape]}, at, base="/m")


def test_cycles_and_depth_are_limited() -> None:
    """A cycle or a long chain of documents is an error that shows the chain (SPEC-11, SEC-3)."""
    cycle = {
        "/data/d.json": {"datasets": [{"source_url": "e.json"}]},
        "/data/e.json": {"datasets": [{"source_url": "d.json"}]},
    }
    deep = {f"/data/{i}.json": {"datasets": [{"source_url": f"{i + 1}.json"}]} for i in range(20)}

    with raises(SpecError, "/data/d.json: refers to itself", "/data/d.json → /data/e.json"):
        load_spec("/data/d.json", read=Documents(cycle))
    with raises(SpecError, f"at most {MAX_DEPTH} documents", "/data/0.json → /data/1.json"):
        load_spec("/data/0.json", read=Documents(deep))


def test_many_documents_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of documents in one spec is limited (SPEC-11)."""
    assert MAX_DOCUMENTS == 10_000
    monkeypatch.setattr("wids.shards.specs.documents.MAX_DOCUMENTS", 500)
    bomb = {
        f"/data/{i}.json": {"datasets": [{"source_url": f"{i + 1}.json"}] * 100} for i in range(5)
    }
    bomb["/data/5.json"] = {"datasets": []}

    with raises(SpecError, "at most 500 documents, found more"):
        load_spec("/data/0.json", read=Documents(bomb))


BAD: dict[str, tuple[Any, str]] = {
    "not JSON": (b"<html>404", "expected a JSON document, found text that begins with '<html>404'"),
    "deep": (b"[" * 100_000, "expected a JSON document"),
    "a list": ([1, 2], "expected a JSON object with a shardlist, found list [1, 2]"),
    "a count": (9, "expected a JSON object with a shardlist, found int 9"),
    "no shardlist": ({"name": "x"}, "expected the key shardlist or datasets, found name"),
    "empty object": ({}, "expected the key shardlist or datasets, found nothing"),
    "empty list": ({"shardlist": []}, "expected at least one shard, found an empty list"),
    "version": (
        {"wids_version": 2, "shardlist": ["a.tar"]},
        "expected wids_version 1, found 2; a newer version of wids may read it",
    ),
    "list is text": ({"shardlist": "a.tar"}, ".shardlist: expected a list, found str 'a.tar'"),
    "entry": ({"shardlist": [7]}, "shardlist[0]: expected an object with a url, found int 7"),
    "no url": ({"shardlist": [{"nsamples": 1}]}, "shardlist[0].url: expected a path or URL"),
    "empty url": ({"shardlist": [{"url": ""}]}, "shardlist[0].url: expected a path or URL"),
    "negative": (
        {"shardlist": ["a.tar", {"url": "b.tar", "nsamples": -1}]},
        "shardlist[1].nsamples: expected a whole number from 0 to 2**63 - 1, found -1",
    ),
    "fraction": (
        {"shardlist": [{"url": "b.tar", "nsamples": 1.5}]},
        "nsamples: expected a whole number from 0 to 2**63 - 1, found 1.5",
    ),
    "text count": ({"shardlist": [{"url": "b.tar", "nsamples": "9"}]}, "found '9'"),
    "boolean count": ({"shardlist": [{"url": "b.tar", "nsamples": True}]}, "found True"),
    "size": ({"shardlist": [{"url": "b.tar", "filesize": -2}]}, "filesize: expected"),
    "digest": ({"shardlist": [{"url": "b.tar", "md5sum": 5}]}, "md5sum: expected text, found int"),
    "name": ({"name": 5, "shardlist": ["a.tar"]}, ".name: expected text, found int 5"),
    "base": ({"base": 5, "shardlist": ["a.tar"]}, ".base: expected text, found int 5"),
    "key split": ({"key_split": "x", "shardlist": ["a"]}, '.key_split: expected "first" or "last"'),
    "component": ({"datasets": [3]}, "datasets[0]: expected an object, found int 3"),
    "source": ({"datasets": [{"source_url": 3}]}, "datasets[0].source_url: expected text"),
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_document_is_refused(name: str) -> None:
    """The error names the document, the place in it, what was expected and what was found.

    SPEC-3.
    """
    document, message = BAD[name]

    with raises(SpecError, "/data/d.json", message):
        load(document)


def test_malformed_argument_is_refused(tmp_path: Path) -> None:
    """Errors in the other forms of ``shards`` name the item."""
    with raises(SpecError, "shards[1]: expected a path, a (path, count) pair, a dict or", "int 7"):
        load_spec(["a.tar", 7])  # type: ignore[list-item]
    with raises(
        SpecError, "shards[0].nsamples: expected a whole number from 0 to 2**63 - 1, found -3"
    ):
        load_spec([("a.tar", -3)])
    with raises(SpecError, "expected one shard for the count 3, found a pattern of 2"):
        load_spec([("a-{0..1}.tar", 3)])
    with raises(SpecError, "shards: expected at least one shard, found an empty list"):
        load_spec([])
    with raises(SpecError, "shards: expected a path, URL, pattern", "found int"):
        load_spec(7)  # type: ignore[arg-type]
    with raises(NotFoundError, f"{tmp_path}/gone.json: no such file"):
        load_spec(tmp_path / "gone.json")


def test_remote_errors_name_the_document(server: Server) -> None:
    """A missing document and a web page are different errors."""
    with raises(NotFoundError, "/gone.json: not found (HTTP status 404); check the URL"):
        load_spec(server.url + "/gone.json")
    with raises(SpecError, "/x.json: expected a JSON document, found text that begins with '<html"):
        load_spec(server.page("/x.json", b"<html>welcome</html>"))


def test_weight_without_a_name_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A weight is not silently ignored (SPEC-5)."""
    with caplog.at_level(logging.WARNING, "wids"):
        spec = load({"datasets": [{"weight": 0.5, "shardlist": ["a.tar"]}]})

    assert "datasets[0]: the weight 0.5 is not used: it has no name" in caplog.text
    assert spec.weights == {}


def part(name: str, url: str, **more: Any) -> dict[str, Any]:
    """Return an inline dataset of one shard."""
    return {"name": name, "shardlist": [url], **more}


def test_weights_are_by_name() -> None:
    """Where one is stated, the others are 1; shards of one name have one weight (SPEC-5)."""
    parts = [part("a", "a.tar", weight=0.5), part("b", "b.tar"), part("a", "c.tar", weight=2)]

    assert load({"datasets": parts}).weights == {"a": 2.5, "b": 1}
    assert load({"datasets": [part("a", "a.tar"), part("b", "b.tar")]}).weights == {}
    assert load({"datasets": parts, "weights": {"b": 7}}).weights == {"a": 2.5, "b": 7}


def test_weight_is_divided_among_the_datasets_of_a_dataset() -> None:
    """The weight of a dataset of datasets is that of all of them together (SPEC-5)."""
    inner = {"datasets": [part("a", "a.tar", weight=3), part("b", "b.tar")]}
    outer = {"datasets": [{**inner, "weight": 2}, part("c", "c.tar", weight=0)]}

    assert load(outer).weights == {"a": 1.5, "b": 0.5, "c": 0}


def test_weights_of_a_list_of_documents(tmp_path: Path) -> None:
    """Each document of a list has the weight 1, divided among its datasets (SPEC-5)."""
    for name, weights in (("x", {"x": 4, "y": 1}), ("z", None)):
        parts = [part("x", "x.tar"), part("y", "y.tar")] if weights else [part("z", "z.tar")]
        document = {"datasets": parts, "weights": weights}
        (tmp_path / f"{name}.json").write_text(json.dumps(document))

    spec = load_spec([tmp_path / "x.json", tmp_path / "z.json"])

    assert spec.weights == {"x": 0.8, "y": 0.2, "z": 1}


@pytest.mark.parametrize("weight", [-1, "2", True, {}, float("nan"), float("inf"), 10**400])
def test_weight_must_be_a_number(weight: Any) -> None:
    """A weight that cannot be one is an error, with its place (SPEC-3, SPEC-5)."""
    with raises(SpecError, "datasets[0]: weight: expected a number of at least 0, found"):
        load({"datasets": [part("a", "a.tar", weight=weight)]})
    with raises(SpecError, "d.json: weights['a']: expected a number of at least 0, found"):
        load({"shardlist": ["a.tar"], "weights": {"a": weight}})
    with raises(SpecError, "d.json: weights: expected an object with a number for each name"):
        load({"shardlist": ["a.tar"], "weights": [1]})


@pytest.mark.parametrize("count", [2**63, 10**30])
def test_count_of_more_than_64_bits_is_refused(count: int) -> None:
    """No count, and no sum of counts, may exceed what an array can hold."""
    with raises(SpecError, "shardlist[0].nsamples: expected a whole number from 0 to 2**63 - 1"):
        load({"shardlist": [{"url": "a.tar", "nsamples": count}]})
    with raises(SpecError, "its counts add up to 2**63 or more"):
        ShardListDataset([("a.tar", 2**62), ("b.tar", 2**62)])


def test_numpy_counts_are_accepted() -> None:
    """A caller's counts may be integers of numpy."""
    (shard,) = load_spec([("/a.tar", np.int64(8))]).shards  # type: ignore[list-item]

    assert shard == ShardSpec("/a.tar", 8)
    assert type(shard.num_samples) is int


@pytest.mark.parametrize("url", ["a\0.tar", "\ud800.tar"])
def test_impossible_path_is_refused(url: str) -> None:
    """Text that cannot be the name of a file is refused wherever it occurs."""
    with raises(SpecError, "shardlist[0].url: expected a path or URL, found"):
        load({"shardlist": [url]})
    for key in ("index", "base", "base_path"):
        with raises(SpecError, f".{key}: expected a path or URL, found"):
            load({"shardlist": ["a.tar"], key: url})
    with raises(SpecError, "source_url: expected a path or URL, found"):
        load({"datasets": [{"source_url": url}]})
    with raises(SpecError, "shardlist[0].index: expected a path or URL, found"):
        load({"shardlist": [{"url": "a.tar", "index": url}]})


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("url", ["http://[x/a.tar", "https://", "s3://", "http://h:port/x"])
def test_odd_urls_are_text(url: str) -> None:
    """Any text with a scheme can be loaded and joined; only fetching it is an error."""
    assert load({"shardlist": [url]}).shards[0].url == url
    assert load({"base": url, "shardlist": ["a.tar"]}).shards[0].url.endswith("/a.tar")
    with pytest.raises(FetchError):
        ShardListDataset([(url, 1)])[0]


def test_inline_datasets_have_a_depth() -> None:
    """The depth of inline datasets is limited (SPEC-11, SEC-3)."""
    document: dict[str, Any] = {"shardlist": ["a.tar"]}
    for _ in range(600):
        document = {"datasets": [document]}

    with raises(SpecError, f"expected at most {MAX_DEPTH} datasets inside one another"):
        load_spec(document)


def test_documents_in_a_list_keep_their_names() -> None:
    """A list of one document is that document; in a longer list its shards get its name."""
    read = Documents(
        {
            "/d/a.json": {"name": "A", "index": "a.index", "shardlist": ["a.tar"]},
            "/d/b.json": {"name": "B", "shardlist": ["b.tar"]},
        }
    )

    assert load_spec(["/d/a.json"], read=read) == load_spec("/d/a.json", read=read)
    both = load_spec(["/d/a.json", "/d/b.json"], read=read)
    assert [shard.dataset for shard in both.shards] == ["A", "B"]


@pytest.mark.parametrize(
    "text",
    [
        *("[],", "0,"),
        *(
            pytest.param(text, marks=pytest.mark.long)
            for text in ("{},", '{"":[]},', '"a",', "[[],[]],")
        ),
    ],
)
def test_a_bomb_of_values_is_refused(text: str, tmp_path: Path) -> None:
    """Sixty megabytes of small values, of gigabytes, are not parsed (SEC-39)."""
    path = tmp_path / "bomb.json"
    path.write_text('{"shardlist": [' + text * (60_000_000 // len(text)) + "0]}")
    started_s = time.process_time()
    with raises(SpecError, "bomb.json: expected at most", "10000000 values"):
        load_spec(path)
    with path.open("rb") as file, raises(SpecError, "10000000 values"):
        load_spec(file)
    assert time.process_time() - started_s < 3


def test_values_of_all_documents_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many documents are not more than one (SPEC-11)."""
    monkeypatch.setattr(parsing, "MAX_VALUES", 10_000)
    path = tmp_path / "many.json"
    path.write_text(json.dumps({"shardlist": ["a.tar"], "more": [0] * 2_000}))
    parts = [{"source_url": "many.json"}] * 100

    with raises(SpecError, "many.json: expected at most", "10000 values"):
        load_spec({"datasets": parts}, base=tmp_path)


def test_a_long_document_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document has a length, in a file that is open too (SPEC-11)."""
    assert parsing.MAX_DOCUMENT_NBYTES == 256 << 20
    path = tmp_path / "long.json"
    path.write_text(json.dumps({"shardlist": ["a.tar"], "info": "x" * 1000}))
    monkeypatch.setattr("wids.shards.specs.parsing.MAX_DOCUMENT_NBYTES", 1000)

    with raises(FetchError, "long.json: expected at most 1000 bytes"):
        load_spec(path)
    for mode in ("r", "rb"):
        with path.open(mode) as file, raises(SpecError, "long.json: expected at most 1000 bytes"):
            load_spec(file)


def nested(depth: int, brackets: str) -> str:
    return brackets[:-1] * depth + ("[]" if "a" in brackets else "") + brackets[-1] * depth


@pytest.mark.parametrize("brackets", ["[]", pytest.param('{"a":}', marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "place",
    [
        *("{}", '{{"shardlist": {}}}', '{{"shardlist": [{}]}}', '{{"shardlist": [{{"url": {}}}]}}'),
        *('{{"wids_version": {}}}', '{{"name": {}, "files": []}}', '{{"datasets": [{}]}}'),
        '{{"datasets": [{{"weight": {}}}]}}',
        *('{{"shardlist": [{{"url": "a", "nsamples": {}}}]}}', '{{"key_split": {}, "files": []}}'),
    ],
)
def test_deep_values_are_errors_of_the_spec(place: str, brackets: str, tmp_path: Path) -> None:
    """Values of any depth are refused by an error of their file; no stack is exhausted (SEC-39)."""
    path = tmp_path / "deep.json"
    for depth in (3, *range(970, 1000), 5000, 1_000_000):
        path.write_text(place.format(nested(depth, brackets)))
        with pytest.raises(SpecError, match=r"deep\.json"):
            load_spec(path)


@pytest.mark.parametrize("brackets", ["[]", '{"a":}'])
def test_deep_values_of_unknown_keys(brackets: str, tmp_path: Path) -> None:
    """They are ignored up to a depth, and refused beyond it (SEC-39)."""
    path = tmp_path / "deep.json"
    is_loaded = []
    for depth in (3, 900, *range(970, 1000), 5000, 1_000_000):
        path.write_text(f'{{"shardlist": ["a.tar"], "more": {nested(depth, brackets)}}}')
        try:
            is_loaded.append(len(load_spec(path).shards) == 1)
        except SpecError as error:
            assert "deep.json" in str(error)  # noqa: PT017 - either is right near the limit
            is_loaded.append(False)
    assert is_loaded == sorted(is_loaded, reverse=True)
    assert is_loaded[:2] == [True, True]
    assert not is_loaded[-1]  # Python 3.13 parses deeper documents than 3.12


def of_classes(*names: str, number: int = 0) -> dict[str, Any]:
    shards = [{"url": f"{number}.tar", "nsamples": 1}]
    return {"name": f"n{number}", "shardlist": shards, **({"classes": names} if names else {})}


@pytest.mark.parametrize("is_document", [True, False])
def test_classes_of_several_datasets(is_document: bool) -> None:
    """They are the longest list, if all state one; other names are an error (SPEC-62)."""

    def classes(*lists: tuple[str, ...], **more: Any) -> list[str]:
        documents = [of_classes(*names, number=number) for number, names in enumerate(lists)]
        if is_document:
            return load_spec({"datasets": documents, **more}).classes
        return load_spec(map(load_spec, documents)).classes

    cats = ("cat", "dog")
    assert classes(cats, cats) == list(cats)
    assert classes(cats, (*cats, "eel"), cats) == [*cats, "eel"]
    assert classes(cats, ()) == classes(()) == []
    places = ("datasets[0]", "datasets[2]") if is_document else ("n0", "n2")
    error = "2 (cat, dog), found 3 (ant, cat, dog): number 0 is 'cat' there and 'ant' here"
    with raises(SpecError, *places, error, "--classes"):
        classes(cats, (), ("ant", *cats))
    if is_document:
        assert classes(cats, ("ant",), classes=[]) == []
        assert classes(cats, (), classes=cats) == list(cats)
        with raises(SpecError, "the document: datasets[0]: expected the classes of the document"):
            classes(cats, (), classes=["ant", "bee"])


def test_classes_of_patterns_of_documents(tmp_path: Path) -> None:
    """The lists of documents that one name stands for are compared too (SPEC-62)."""
    for number, names in enumerate((("cat", "dog"), ("dog",))):
        document = json.dumps(of_classes(*names, number=number))
        (tmp_path / f"{number}.json").write_text(document)
    with raises(SpecError, "n1: expected the classes of n0, 2 (cat, dog), found 1 (dog)"):
        load_spec(tmp_path / "*.json")
    with raises(SpecError, "1.json: expected the classes of", "0.json, 2 (cat, dog)"):
        load_spec([tmp_path / "0.json", tmp_path / "1.json"])
