"""`to_tuple` and `map`: what becomes of a sample after it was decoded."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

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
    """The first name that a sample has is taken, in any case, with or without its dot."""
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


def test_missing_fields_get_values_or_are_left_out(mixed: Path) -> None:
    """A value by the name of the field; or a view of the samples that have it."""
    with ShardListDataset(mixed) as dataset:
        fields = ("jpg;text", "cls")
        values = dataset.to_tuple(*fields, missing={"text": "none"})
        assert list(values) == [("none", 0), ("none", 1), ("c", 2)]
        assert repr(values.transformations[-1]) == (
            "ToTuple('jpg;text', 'cls', missing={'.jpg;.text': 'none'})"
        )
        assert dataset.to_tuple(*fields, missing={".jpg": None})[0] == (None, 0)
        assert list(dataset.to_tuple(*fields, missing="skip")) == [("c", 2)]
        view = dataset[[2, 0, 1]].to_tuple(".txt", "__key__", missing="skip")
        assert list(view) == [("other", "c"), ("a", "a"), ("b", "b")]
        # One that a transformation adds is in no index.
        added = dataset.map(lambda sample: {**sample, ".n": sample[".cls"] + 1})
        assert list(added.to_tuple(".n", ".text", missing="skip")) == [(3, "c")]
        joined = dataset.join({"b": 3}, prefix="n", missing="none")
        assert list(joined.to_tuple(".n", missing="skip")) in ([(3,)], [(None,), (3,), (None,)])
        with raises(ValueError, "missing", ".jpg"):
            dataset.to_tuple("cls", missing={".jpg": 0})
        with raises(ValueError, "missing", "'none'"):
            dataset.to_tuple("cls", missing="none")  # type: ignore[arg-type]


# On Python 3.10 torch closes the queue of such a loader while its thread writes to it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("policy", ["skip", "next"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_missing_field_is_no_damage(mixed: Path, policy: Any, num_workers: int) -> None:
    """Samples without it are named, and neither left out nor replaced."""
    with ShardListDataset(mixed, on_error=policy, max_failed=1.0) as dataset:
        views = {
            'missing="skip"': dataset.to_tuple(".text", ".cls"),
            "the sample has": dataset.map(lambda sample: sample[".text"]),
        }
        for advice, view in views.items():
            loader = DataLoader(view, batch_size=3, num_workers=num_workers)
            text = ""
            try:
                list(loader)
            except TransformError as error:
                text = str(error)
                # torch keeps the loader in a cycle, whose workers would take 10 s to end.
                traceback.clear_frames(error.__traceback__)
            parts = ('"a" (index 0)', '"b"', "damage alone", advice)
            assert [part for part in parts if part not in text] == []
            with raises(TransformError, '"b" (index 1)', advice):
                view[1]
            with raises(TransformError, '"a" (index 0)', advice):
                list(view)
        assert dataset.num_failed == 0


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
    """`map` leaves the dataset as it is, `add_transform` changes it."""
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
    """A `KeyError` of a transformation says which fields the sample has."""
    with ShardListDataset(mixed) as dataset, raises(TransformError, text):
        dataset.map(lambda sample: sample[name])[0]
