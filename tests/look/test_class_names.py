"""Names of classes, which a spec states once: wherever people look, and in conditions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import optional, raises, write_tar

import wids
from wids.cli.main import main
from wids.shards.specs.model import class_name, is_of_classes
from wids.tables.conditions import met_in, parsed

NAMES = ["cat", "dog", "owl\x1b[31m"]


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The spec of six samples of three classes, with a caption each."""
    folder = tmp_path_factory.mktemp("pets")
    members = [
        (f"{n}{field}", data)
        for n in range(6)
        for field, data in {".cls": b"%d" % (n % 3), ".txt": b"text %d" % n}.items()
    ]
    shard = write_tar(folder / "pets.tar", members)
    spec = wids.build_spec([shard], dataset_index=folder / "pets.index")
    document = {**spec.document(str(folder)), "classes": NAMES}
    (folder / "pets.json").write_text(json.dumps(document))
    return folder / "pets.json"


def test_the_dataset_has_the_names(pets: Path) -> None:
    """`dataset.classes` is as the spec states it, in views too; empty if it states none."""
    with wids.ShardListDataset(pets) as dataset:
        assert dataset.classes == dataset[2:].classes == dataset.spec.classes == NAMES
        assert wids.ShardListDataset(dataset.shards).classes == []
        renamed = dataset[1:]
        renamed.classes = ["a", "b", "c"]
        assert [sample[".cls"] for sample in renamed.search(where=".cls == 'b'")] == [1, 1]
        assert (renamed[:2].classes, dataset.classes) == (["a", "b", "c"], NAMES)
    for other in ({"0": "cat"}, "cat", None):
        assert wids.DatasetSpec((), extras={"classes": other}).classes == []


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ('.cls == "dog"', [1, 4]),
        (".cls != 'dog'", [0, 2, 3, 5]),
        (".cls == 1", [1, 4]),
        ('.cls == "dog" and __index__ > 1', [4]),
        (".txt == 'dog'", []),
        ("label == 'cat'", [0, 3]),
    ],
)
def test_conditions_by_name(condition: str, expected: list[int], pets: Path) -> None:
    """`--where` takes the name of a class for its number, also in a saved table."""
    pytest.importorskip("pyarrow")
    if "label" in condition:
        columns = ["--columns", "label=.cls", "--output", str(pets.parent / "pets.parquet")]
        assert main(["table", str(pets), *columns]) == 0
    with wids.ShardListDataset(pets, progress=False) as dataset:
        assert met_in(dataset, condition).nonzero()[0].tolist() == expected
    if "label" not in condition:
        (first, *_) = parsed(condition, NAMES)
        found = [n for n in range(6) if first.accepts(n % 3 if first.column == ".cls" else "x")]
        assert set(expected) <= set(found)


def test_a_name_that_is_no_class(pets: Path) -> None:
    """The error names the classes that are near, and a column of texts is compared as text."""
    pa = pytest.importorskip("pyarrow")
    with (
        wids.ShardListDataset(pets) as dataset,
        raises(ValueError, "where: .cls", "name of a class, such as dog", "found 'dgo'"),
    ):
        met_in(dataset, ".cls == 'dgo'")
    from wids.tables.conditions import mask

    texts = {".cls": pa.chunked_array([["dog", "1"]])}
    assert mask(texts, parsed(".cls == 'dog'", NAMES)).tolist() == [True, False]
    assert parsed(".cls == 'dog'", NAMES)[0].accepts("dog")


def test_which_columns_have_classes() -> None:
    """A column is of classes by its name; other numbers have no names, nor have others' digits."""
    assert all(map(is_of_classes, (".cls", ".b.cls", "label", "_class", ".CLS", "category")))
    assert not any(map(is_of_classes, (".txt", ".json/label", "cls_score", "classes")))
    names = ["cat", "dog"]
    assert class_name(".cls", "1", names) == "dog"
    assert [class_name(".cls", text, names) for text in ("2", "-1", "x", "9" * 30)] == [""] * 4
    assert class_name(".txt", "1", names) == ""


def test_commands_show_the_names(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`wids info`, its columns and `wids sample` show names that no terminal interprets."""
    pytest.importorskip("pyarrow")
    for arguments, wanted in (
        (["info", str(pets)], "classes  3: cat, dog, owl\\x1b[31m\n"),
        (["info", str(pets), "--columns", ".cls"], "1 · dog"),
        (["sample", str(pets), "4"], "1 · dog\n"),
        (["sample", str(pets), "2"], "2 · owl\\x1b[31m\n"),
    ):
        assert main(arguments) == 0
        shown = capsys.readouterr().out
        assert wanted in shown
        assert "\x1b" not in shown
    assert main(["info", "--json", str(pets)]) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == NAMES


def test_notebooks_show_the_names(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset and its cards show them in a notebook."""
    monkeypatch.setitem(sys.modules, "IPython", None)
    with wids.ShardListDataset(pets) as dataset:
        html: Any = dataset._repr_html_()
        assert "<small>classes</small><span>3: cat, dog, owl\\x1b[31m</span>" in html
        assert "1 · dog" in dataset.show(2)._repr_html_()


def test_samples_in_notebooks_show_the_names(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample shows the name of its class, of its own dataset alone."""
    interactive = optional("IPython.core.interactiveshell")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    shell = interactive.InteractiveShell.instance()

    def shown(sample: dict[str, Any]) -> str:
        html: str = shell.display_formatter.format(sample)[0]["text/html"]
        return html

    try:
        shell.display_formatter.active_types = ["text/plain", "text/html"]
        shards = [pets.with_name("pets.tar")]
        with (
            wids.ShardListDataset(pets) as dataset,
            wids.ShardListDataset(pets, transformations=None, raw="bytes") as undecoded,
            wids.ShardListDataset(shards, dataset_name="others") as unnamed,
        ):
            assert "<td>1 · dog</td>" in shown(dataset[2:].map(dict)[2])
            assert "<td>2 · owl\\x1b[31m</td>" in shown(undecoded[5])
            elsewhere = {**dataset[0], "__shard__": "elsewhere.tar"}
            assert "<td>0</td>" in shown(elsewhere)
            assert "<td>0</td>" in shown({**dataset[0], "__index__": 99})
            assert "0 · cat" in shown(unnamed[0])  # the same sample, which has these names
            dataset[1:].classes = ["a", "b", "c"]
            assert "0 · cat" in shown(dataset[0])
            undecoded.classes = ["one", "two", "three"]
            assert "<td>1 · two</td>" in shown(undecoded[1])
    finally:
        interactive.InteractiveShell.clear_instance()
