"""``wids table`` and ``wids info --columns``: columns saved, named in the spec, and shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command import run
from conftest import write_tar

import wids
from wids.cli.main import main


def test_columns_are_saved_and_named(train: Path) -> None:
    """TABLE-12: on several processes, with a summary; the previous spec stays as ``.bak``."""
    before = train.read_bytes()
    output = train.parent / "train.parquet"
    arguments = ["-c", "label=.cls", "-c", "caption=.txt", "-o", output, "-j", "2"]
    status, text, errors = run("table", train, *arguments)
    assert (status, errors) == (0, "")
    assert text.splitlines()[0] == f"{output}: 20 rows, 4 columns"
    assert text.splitlines()[4].split() == ["label", "int64"]
    assert text.splitlines()[-1] == f"In Python: wids.load_table({str(train)!r})"
    table = wids.load_table(train)
    assert table["label"].to_pylist() == [n % 10 for n in range(20)]
    document = json.loads(train.read_text())
    assert document["table"]["url"] == "train.parquet"
    assert {**document, "table": None} == {**json.loads(before), "table": None}
    assert train.with_suffix(".json.bak").read_bytes() == before
    with wids.ShardListDataset(train) as dataset:
        assert len(dataset[table["label"].to_numpy() == 3]) == 2


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Call the command in this process, which is quicker."""

    def call(*arguments: object) -> tuple[int, str, str]:
        status = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


def test_the_table_is_named_from_where_references_start(
    call: Call, train: Path, tmp_path: Path
) -> None:
    """TABLE-12: beside a remote base by its name alone, otherwise so that it is found."""
    (tmp_path / "out").mkdir()
    document = json.loads(train.read_text())
    output = tmp_path / "out" / "x.parquet"
    based = tmp_path / "out" / "based.json"
    based.write_text(json.dumps({**document, "base": str(tmp_path)}))
    assert call("table", based, "-c", ".cls", "-o", output, "-j", 1)[0] == 0
    assert json.loads(based.read_text())["table"]["url"] == str(output)
    assert wids.load_table(based).num_rows == 20
    nested = tmp_path / "nested.json"
    nested.write_text(json.dumps({"datasets": [{"source_url": "train.json"}]}))
    assert call("table", nested, "-c", ".cls", "-o", output, "-j", 1)[0] == 0
    assert json.loads(nested.read_text())["table"]["url"] == "out/x.parquet"
    assert wids.load_table(nested).num_rows == 20


def test_without_a_spec_nothing_is_named(call: Call, train: Path) -> None:
    """The file is written, and the command says what is missing."""
    output = train.parent / "x.parquet"
    status, _, errors = call("table", train.parent / "train-000000.tar", "-c", ".cls", "-o", output)
    assert status == 0
    assert "so it does not name the table" in errors
    assert "`wids create`" in errors
    assert output.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-c", ".cls", "-o", "x.csv"], "expected a name that ends in .parquet, found 'x.csv'"),
        (["-c", ".cls", "-o", "none/x.parquet"], "no such folder, for --output"),
        (["-c", ".cls", "-o", "s3://b/x.parquet"], "expected a file on this machine"),
        (["-c", "a=.cls,a=.txt", "-o", "x.parquet"], "found 'a' twice"),
        (["-c", "a=.jpg", "-o", "x.parquet"], "whose values are pictures"),
        (["-c", ".clss", "-o", "x.parquet"], "which no sample has; near it: .cls"),
    ],
)
def test_wrong_arguments_write_nothing(
    call: Call, train: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the spec is touched."""
    before = sorted(p.name for p in train.parent.iterdir())
    monkeypatch.chdir(train.parent)
    status, text, errors = call("table", train, *arguments, "-j", 1)
    assert (status, text) == (1, "")
    assert message in errors
    assert errors.count("\n") == 1
    assert sorted(p.name for p in train.parent.iterdir()) == before


def test_null_for_what_cannot_be_read(call: Call, tmp_path: Path) -> None:
    """On request, and counted in the summary."""
    tar = write_tar(tmp_path / "a.tar", [("a.cls", b"1"), ("b.cls", b"x"), ("c.cls", b"3")])
    output = tmp_path / "a.parquet"
    status, _, errors = call("table", tar, "-c", "n=.cls", "-o", output)
    assert status == 1
    assert 'sample "b"' in errors
    assert not output.exists()
    status, text, _ = call("table", tar, "-c", "n=.cls", "-o", output, "--errors", "null")
    assert (status, text.splitlines()[-1].split()) == (0, ["n", "int64", "1", "null"])


def test_info_shows_distributions(call: Call, train: Path) -> None:
    """Of columns that are read, and of the saved table, by name or all."""
    text = call("info", train, "--columns", "label=.cls,caption=.txt")[1]
    assert "label: int64, 20 rows\n" in text
    assert "caption: string, 20 rows\n" in text
    assert "20 different values" in text
    status, _, errors = call("info", train, "--columns")
    assert status == 1
    assert "expected the name of a saved table, found none" in errors
    call("table", train, "-c", "label=.cls,caption=.txt", "-o", train.parent / "t.parquet", "-j", 1)
    for tar in train.parent.glob("*.tar"):
        tar.unlink()
    text = call("info", train, "--columns")[1]
    assert "label: int64, 20 rows\n" in text
    assert "caption: string, 20 rows\n" in text
    assert "caption" not in call("info", train, "--columns", "label")[1]
    status, _, errors = call("info", "--json", train, "--columns")
    assert status == 1
    assert "expected neither --json nor --table" in errors
