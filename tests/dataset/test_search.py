"""`dataset.search`: what the page of `wids browse` shows for a search, as a view."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from conftest import optional, raises, write_tar
from looks import browsing, search

import wids
from wids.cli.main import main
from wids.tables.conditions import as_typed, parsed

NAMES = ["cat", "dog", "owl"]
NUM_SAMPLES = 60


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The spec of samples in three shards, with captions, classes and JSON."""
    folder = tmp_path_factory.mktemp("pets")
    shards = []
    for number in range(3):
        members = []
        for n in range(number * 20, number * 20 + 20):
            facts = {"n": n, "kind": "tall" if n % 4 == 0 else "small"}
            members += [
                (f"{n:03d}.txt", f"A {NAMES[n % 3]} number {n}".encode()),
                (f"{n:03d}.cls", b"%d" % (n % 3)),
                (f"{n:03d}.json", json.dumps(facts).encode()),
            ]
            members += [(f"{n:03d}.bin", b"x")] if n % 5 == 0 else []
        shards.append(write_tar(folder / f"pets-{number}.tar", members))
    document = wids.build_spec(shards, dataset_index=folder / "pets.index").document(str(folder))
    (folder / "pets.json").write_text(json.dumps({**document, "classes": NAMES}))
    return folder / "pets.json"


VIEWS: list[dict[str, Any]] = [
    {"q": "DOG"},
    {"q": "cat", "where": '[{"column": ".json/n", "low": 7, "high": 31.5}]'},
    {"where": '[{"column": ".cls", "value": "1"}, {"column": ".json/n", "low": 30}]'},
    {"where": '[{"column": ".json/kind", "value": "tall"}]', "field": ".bin"},
    {"where": '[{"column": ".json/n", "value": "12"}]'},
    {"where": '[{"column": ".json/none", "value": null}]', "q": "owl"},
    {"q": "a number", "seed": 7},
    {"seed": 3},
    {"where": '.cls == "owl"', "seed": 0},
]


@pytest.mark.parametrize("query", VIEWS)
def test_code_of_the_page_is_what_it_shows(query: dict[str, Any], spec: Path) -> None:
    """The expression on the page is a view of the samples on it, in their order."""
    text = urlencode(query)
    with browsing(spec) as client:
        search(client, text)
        answer = client.json(f"samples?{text}&count=60")
    with wids.ShardListDataset(spec) as dataset:
        view = eval(answer["python"], {"dataset": dataset})  # noqa: S307
        assert [sample["__index__"] for sample in view] == [c["index"] for c in answer["cards"]]
        assert 0 < len(view) == answer["num_found"]
        assert type(view) is type(dataset)


@pytest.mark.parametrize(
    ("listed", "typed"),
    [
        ('[{"column": ".cls", "value": "1"}]', '.cls == "dog"'),
        ('[{"column": ".cls", "value": "7"}]', ".cls == 7"),
        ('[{"column": ".t", "value": "a \\"b\\""}]', '.t == "a \\"b\\""'),
        ('[{"column": ".n", "low": 5, "high": 6}]', ".n >= 5 and .n <= 6"),
        ('[{"column": ".n", "high": 6}, {"column": "k", "value": "x"}]', '.n <= 6 and k == "x"'),
        *(
            (text, text)
            for text in (
                '[{"column": ".n", "value": "7"}]',
                '[{"column": ".n", "value": null}]',
                '[{"column": ".a b", "value": "x"}]',
                '[{"column": ".n", "value": "true"}]',
                '[{"column": ".n"}]'.replace('"}', '", "low": null}'),
                ".cls == 'dog' and .n > 3",
            )
        ),
    ],
)
def test_filters_as_people_type_them(listed: str, typed: str) -> None:
    """A filter of the page is written as people type it where that means the same."""
    assert as_typed(listed, NAMES) == typed
    assert parsed(typed, NAMES)


def test_search_of_a_view(spec: Path) -> None:
    """Only samples of the view are found, in its order; a seed shuffles them."""
    with wids.ShardListDataset(spec) as dataset:
        view = dataset[40:4:-1]
        found = view.search("owl", where=".json/n < 20")
        assert [sample["__index__"] for sample in found] == [17, 14, 11, 8, 5]
        shuffled = view.search("owl", where=".json/n < 20", seed=1)
        assert sorted(sample["__index__"] for sample in shuffled) == [5, 8, 11, 14, 17]
        assert len(dataset.search("nowhere")) == 0
        assert len(dataset.search()) == NUM_SAMPLES
        pairs = dataset.to_tuple(".cls", ".txt").search("number 59")
        assert pairs[0] == (59 % 3, "A owl number 59")
        with raises(ValueError, "expected comparisons"):
            dataset.search(where="x")


def test_conditions_that_no_sample_can_meet(spec: Path) -> None:
    """A field that no shard has is an error, and so is a function; nothing found is not."""
    with wids.ShardListDataset(spec) as dataset:
        for conditions in ({"where": ".nope == 1"}, {"field": ".nope"}):
            with raises(ValueError, "expected fields", ".txt", "found .nope"):
                dataset.search("owl", **conditions)
        with raises(ValueError, "found .nope"):
            dataset.search(where=".cls == 1 and .nope == 1")
        assert len(dataset[1:4].search(field=".bin")) == 0
        joined = dataset.join({f"{n:03d}": "1" for n in range(NUM_SAMPLES)}, prefix="more.txt")
        assert len(joined.search(where=".more.txt == '2'")) == 0
        with raises(TypeError, "where: expected text", "dataset[[n for n"):
            dataset.search(where=len)  # type: ignore[arg-type]


def test_a_search_needs_no_page(spec: Path) -> None:
    """It finds the same where the page cannot be imported."""
    script = f"""
import sys
sys.modules["wids.look.page"] = sys.modules["wids.look.preview"] = None
import wids
with wids.ShardListDataset({str(spec)!r}) as dataset:
    assert len(dataset.search("dog", where=".json/n < 30 and .cls == 'dog'", seed=1)) == 10
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_columns_of_a_saved_table(spec: Path) -> None:
    """A column of the saved table is answered from it; a search joins both."""
    pytest.importorskip("pyarrow")
    columns = ["--columns", "number=.json/n", "--output", str(spec.parent / "pets.parquet")]
    assert main(["table", str(spec), *columns]) == 0
    with wids.ShardListDataset(spec) as dataset:
        found = dataset[:50].search("cat", where="number >= 42")
        assert [sample["__index__"] for sample in found] == [42, 45, 48]
        only = dataset[10:].search(where="number < 12")
        assert [sample["__index__"] for sample in only] == [10, 11]


def test_what_is_left_out_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Fields that cannot be read are no hits, and a warning counts them."""
    shard = write_tar(tmp_path / "a.tar", [("a.json", b"{"), ("b.json", b'{"n": 1}')])
    with wids.ShardListDataset(shard) as dataset, caplog.at_level(logging.WARNING, "wids"):
        assert len(dataset.search(where=".json/n == 1")) == 1
    assert "left out: 1 unreadable" in caplog.text


def test_counts_follow_the_search(spec: Path) -> None:
    """Values are counted in the samples that are shown, whatever their own value."""
    optional("pyarrow")
    columns = ["--columns", "label=.cls,n=.json/n", "--output", str(spec.parent / "c.parquet")]
    assert main(["table", str(spec), *columns]) == 0

    def counts(client: Any, name: str, **query: str) -> dict[str, int]:
        answer = client.json(f"column?{urlencode({'name': name, **query})}")
        assert answer.get("state") == "done", answer
        return {value["label"]: value["count"] for value in answer["values"]}

    with browsing(spec) as client:
        for name in (".cls", "label"):
            own = {"column": name, "value": "1"}
            low = json.dumps([{"column": "n", "low": 0, "high": 9}, own])
            assert counts(client, name) == {"0": 20, "1": 20, "2": 20}
            assert counts(client, name, q="dog") == {"1": 20}
            assert counts(client, name, where=low) == {"0": 4, "1": 3, "2": 3}
            assert counts(client, name, where=low, q='"number 1"') == {"1": 1}
            assert counts(client, name, field=".bin") == {"0": 4, "1": 4, "2": 4}
            assert counts(client, ".json/kind", where=json.dumps([own]), q="dog") == {
                "small": 15,
                "tall": 5,
            }
