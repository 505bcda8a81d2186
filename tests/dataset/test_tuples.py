"""`to_tuple` and `map`: what becomes of a sample after it was decoded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import raises, write_tar
from torch.utils.data import DataLoader

from wids import ShardListDataset, TransformError
from wids.dataset.tuples import ToTuple


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Texts under three spellings, with a class."""
    members = [
        ("a.txt", b"a"),
        ("a.cls", b"0"),
        ("b.TXT", b"b"),
        ("b.cls", b"1"),
        ("c.text", b"c"),
        ("c.txt", b"other"),
        ("c.cls", b"2"),
    ]
    return write_tar(tmp_path / "mixed.tar", members)


def test_tuples_by_alternatives_in_any_case(mixed: Path) -> None:
    """The first name that a sample has is taken, in any case, with or without its dot (VIEW-3)."""
    with ShardListDataset(mixed) as dataset:
        assert list(dataset.to_tuple(".txt;.text", "cls")) == [("a", 0), ("b", 1), ("other", 2)]
        assert list(dataset.to_tuple("text;txt", "__key__")) == [("a", "a"), ("b", "b"), ("c", "c")]
        assert len(dataset[0]) > 2, "the dataset itself is unchanged"
        batch = next(iter(DataLoader(dataset.to_tuple("txt", "cls"), batch_size=2)))
        assert (batch[0], torch.equal(batch[1], torch.tensor([0, 1]))) == (("a", "b"), True)


def test_a_missing_field_names_those_that_exist(mixed: Path) -> None:
    """The error says what was expected and found, in which sample, and what to do."""
    with ShardListDataset(mixed) as dataset:
        with raises(
            TransformError,
            '"a" (index 0)',
            "expected the field .jpg or .png, found .txt, .cls",
            "add an alternative",
        ):
            dataset.to_tuple(".jpg;.png", ".cls")[0]
        with raises(TransformError, "to_tuple: expected a sample, found int 0"):
            dataset.map(lambda sample: sample[".cls"]).to_tuple(".cls")[0]


def test_a_missing_field_is_a_key_error(mixed: Path) -> None:
    """As for `sample[name]`, so that programs need not distinguish the two."""
    with ShardListDataset(mixed) as dataset:
        with raises(KeyError, "to_tuple: expected the field .jpg or .png, found .txt, .cls;"):
            ToTuple(".jpg;.png")(dataset[0])
        with pytest.raises(TransformError) as caught:
            dataset.to_tuple(".jpg;.png")[0]
    assert isinstance(caught.value.__cause__, KeyError)
    # The text is no `repr`, which that of a KeyError is.
    assert "KeyError: to_tuple: expected the field" in str(caught.value)
    assert "\\" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ((), ValueError, "expected names of fields"),
        (("a;",), ValueError, "found 'a;'"),
        ((".jpg", 3), TypeError, "found 3"),
    ],
)
def test_bad_names_are_refused(mixed: Path, fields: tuple[str], kind: type, text: str) -> None:
    """A name that can match nothing is an error at once."""
    with ShardListDataset(mixed) as dataset, raises(kind, "to_tuple", text):
        dataset.to_tuple(*fields)


def test_map_returns_a_view(mixed: Path) -> None:
    """`map` leaves the dataset as it is, `add_transform` changes it (VIEW-1)."""
    with ShardListDataset(mixed) as dataset:
        classes = dataset.map(lambda sample: sample[".cls"])
        assert list(classes) == [0, 1, 2]
        assert list(classes[1:].map(lambda number: number * 10)) == [10, 20]
        assert dataset[1][".cls"] == 1
        dataset.add_transform(lambda sample: sample["__key__"])
        assert list(dataset) == ["a", "b", "c"]
        assert list(classes) == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cls", 'KeyError: cls: fields keep their dot: sample[".cls"]'),
        (".TXT", 'KeyError: .TXT: field names keep their case: sample[".txt"]'),
        ("TXT", 'KeyError: TXT: field names keep their case: sample[".txt"]'),
        (".jpg", "KeyError: .jpg: the sample has .txt, .cls"),
        ("zebra", "KeyError: 'zebra'"),
    ],
)
def test_missing_fields_in_transformations_are_explained(mixed: Path, name: str, text: str) -> None:
    """A `KeyError` of a transformation says which fields the sample has (VIEW-4)."""
    with ShardListDataset(mixed) as dataset, raises(TransformError, text):
        dataset.map(lambda sample: sample[name])[0]
