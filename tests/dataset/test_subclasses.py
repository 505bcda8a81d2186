"""Subclasses of the dataset, as programs write them: their samples arrive on every way."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, DataLoader, SequentialSampler, Subset

import wids
from wids import ChunkedSampler, ShardListDataset
from wids.dataset import access


class Doubled(ShardListDataset):
    """Adds a field to each sample, and counts its calls."""

    num_calls = 0

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        if isinstance(sample, ShardListDataset):
            return sample
        self.num_calls += 1
        return {**sample, "twice": 2 * sample[".cls"]}


class Odd(Doubled):
    """Has another meaning of an index, and another length."""

    def __len__(self) -> int:
        return super().__len__() // 2

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return super().__getitem__(2 * index + 1)


class Mixin:
    """Overrides ``__getitem__`` from the side."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[".cls"]  # type: ignore[misc]


class Mixed(Mixin, Doubled):
    """Has the method of its mixin."""


class OwnBatches(Doubled):
    """Overrides batches and iteration too, so that they stay its own."""

    def __getitems__(self, indices: Any) -> list[Any]:
        return ["batch"] * len(indices)

    def __iter__(self) -> Iterator[Any]:
        return iter(["all"])


class BatchesOfItsOwn(ShardListDataset):
    """Adds to the samples of batches and iterations, which it has from the class itself."""

    def __getitems__(self, indices: Any) -> list[Any]:
        return [{**sample, "batch": True} for sample in super().__getitems__(indices)]

    def __iter__(self) -> Iterator[Any]:
        return ({**sample, "turn": True} for sample in super().__iter__())


class SingleAgain(OwnBatches):
    """Overrides only ``__getitem__`` of a class with batches of its own."""

    def __getitem__(self, index: Any) -> Any:
        return ("single", index)


@pytest.fixture
def dataset(train: Path) -> Iterator[Doubled]:
    with Doubled(train) as dataset:
        yield dataset


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loader_calls_the_overridden_method(dataset: Doubled, num_workers: int) -> None:
    """Every sample of a DataLoader has the field that the subclass adds, in the sampler's order."""
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=6, sampler=ChunkedSampler(dataset), num_workers=num_workers
    )
    seen = []
    for batch in loader:
        assert batch["twice"].tolist() == (2 * batch[".cls"]).tolist()
        seen += batch["__index__"].tolist()

    assert seen == list(ChunkedSampler(dataset))


def test_every_way_leads_through_the_overridden_method(dataset: Doubled) -> None:
    """Batches, iteration, keys, views, subsets and pickles; each sample is made once."""
    expected = [2 * (n % 10) for n in range(20)]

    assert [sample["twice"] for sample in dataset] == expected
    assert dataset.num_calls == 20
    assert [sample["twice"] for sample in dataset.__getitems__([19, 0])] == [18, 0]
    assert dataset.num_calls == 22
    assert dataset.get_by_key("s00009")["twice"] == 18
    assert Subset(dataset, [3]).__getitems__([0])[0]["twice"] == 6
    with pickle.loads(pickle.dumps(dataset)) as other:  # noqa: S301 - made here
        assert [sample["twice"] for sample in other] == expected


def test_view_of_a_subclass_is_one(dataset: Doubled) -> None:
    """A view keeps the class, and so what it adds, in loaders too."""
    view = dataset[8:14]

    assert type(view) is Doubled
    assert [sample["twice"] for sample in view] == [16, 18, 0, 2, 4, 6]
    loader: DataLoader[Any] = DataLoader(view, batch_size=3)
    assert [b["twice"].tolist() for b in loader] == [[16, 18, 0], [2, 4, 6]]


def test_subclass_decides_what_an_index_means(train: Path) -> None:
    """Its length and its indices hold for batches and iteration."""
    with Odd(train) as dataset:
        odd = [index % 10 for index in range(1, 20, 2)]
        assert [sample[".cls"] for sample in dataset] == odd
        assert [sample[".cls"] for sample in dataset.__getitems__(list(range(10)))] == odd


def test_nearest_method_wins(train: Path) -> None:
    """A mixin overrides as a class does, and batches of the subclass's own stay its own."""
    with Mixed(train) as mixed, OwnBatches(train) as own, SingleAgain(train) as single:
        assert mixed.__getitems__([3, 4]) == list(mixed)[3:5] == [3, 4]
        assert (own.__getitems__([1]), list(own)) == (["batch"], ["all"])
        assert own[1]["twice"] == 2
        assert single.__getitems__([1]) == [("single", 1)]
        assert len(list(single)) == 20


def test_class_without_a_method_of_its_own_reads_batches() -> None:
    """Only an overridden ``__getitem__`` costs the reading of whole batches."""

    class Named(ShardListDataset):
        pass

    assert Named.__getitems__ is ShardListDataset.__getitems__
    assert Named.__iter__ is ShardListDataset.__iter__


def test_selected_fields_are_bytes_in_a_subclass_too(dataset: Doubled) -> None:
    """A gallery asks for the bytes of some fields, of which the subclass knows nothing."""
    with dataset.only([".cls"]) as view, dataset.only(None) as whole:
        assert view[3][".cls"] == b"3"
        assert view.__getitems__([3])[0].keys() >= {".cls"}
        assert whole[3]["twice"] == 6
    assert "s00000" in dataset.show(2)._repr_html_()


@pytest.mark.parametrize("policy", ["skip", "next"])
def test_batches_of_a_subclass_never_see_what_failed(train: Path, policy: Any) -> None:
    """What a subclass adds to batches and iterations is added to samples alone, and once."""
    tar = train.parent / "train-000001.tar"
    with BatchesOfItsOwn(train, on_error=policy) as whole:
        dataset = whole.map(lambda sample: sample if sample["__index__"] != 9 else 1 // 0)
        with pytest.warns(UserWarning, match=f"{tar.name}.*sample .s00009"):
            batch = dataset.__getitems__([8, 9, 10])
        assert [sample["__index__"] for sample in batch] == (
            [8, 10] if policy == "skip" else [8, 10, 10]
        )
        assert all(sample["batch"] for sample in batch)
        turn = [(sample["__index__"], sample["turn"]) for sample in dataset]
    expected = [n if n != 9 else 10 for n in range(20) if n != 9 or policy == "next"]
    assert turn == [(index, True) for index in expected]


class Wrapped:
    """A dataset around another one, which passes on its public names."""

    def __init__(self, dataset: ShardListDataset) -> None:
        self.dataset_inside = dataset

    def __len__(self) -> int:
        return len(self.dataset_inside)

    def __getitem__(self, index: int) -> Any:
        return self.dataset_inside[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "dataset_inside":
            raise AttributeError(name)
        return getattr(self.dataset_inside, name)


class Foreign:
    """A dataset of another library, with an attribute of the same name."""

    sample_access = _access = "rw"

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return range(3)[index]


def test_wrappers_that_pass_on_public_names(train: Path, tmp_path: Path) -> None:
    """A prefetcher and a rewrite accept them; another library's datasets are left alone."""
    dataset: Any = Wrapped(ShardListDataset(train))
    assert sorted(wids.Prefetcher(ChunkedSampler(dataset), dataset)) == list(range(20))
    assert len(wids.ShardListDataset(wids.rewrite(dataset, tmp_path / "new-%06d.tar"))) == 20

    both: Any = ConcatDataset([ShardListDataset(train), Foreign()])  # type: ignore[list-item]
    assert list(wids.Prefetcher(SequentialSampler(both), both)) == list(range(23))
    wrong: Any = type("Wrong", (Wrapped,), {"sample_access": None})(dataset)
    with pytest.raises(TypeError, match=r"expected a wids\.ShardListDataset .*, found Wrong"):
        wids.rewrite(wrong, tmp_path / "no-%d.tar")


def test_what_users_set_stays_on_views(train: Path) -> None:
    """Also on joins and on views of some fields, as on slices."""
    dataset = ShardListDataset(train)
    dataset.classes = ["a", "b"]
    joined = dataset.join({f"s{number:05d}": {"x": number} for number in range(20)})
    for view in (dataset[:3], joined, dataset.only([".cls"])):
        assert view.classes == ["a", "b"]  # type: ignore[attr-defined]


def test_attributes_may_be_assigned_before_the_constructor(train: Path) -> None:
    """The constructor replaces them, as any attribute that it sets."""

    class Early(ShardListDataset):
        def __init__(self, shards: Path) -> None:
            self.transformations = []
            self.dataset_name = "early"
            super().__init__(shards)

    assert Early(train).dataset_name == "train"


def test_a_sample_by_key_is_counted_by_the_subclass(train: Path) -> None:
    """``get_by_key`` calls ``__getitem__`` of this very object."""
    dataset = Doubled(train)
    assert dataset.get_by_key("s00003")["twice"] == 6
    assert dataset.num_calls == 1


def test_a_batch_read_one_by_one_concerns_its_thread_alone(train: Path) -> None:
    """Other threads read as before meanwhile, and an error in the class leaves nothing behind."""
    seen: list[bool] = []

    class Own(wids.ShardListDataset):
        def __getitem__(self, index: Any) -> Any:
            seen.append(access._together.get() is not None)
            if index == 9:
                raise ValueError("the ninth")
            return super().__getitem__(index)

    with Own(train) as dataset:
        assert [sample[".txt"] for sample in dataset.__getitems__([3, 12])] == ["text 3", "text 12"]
        with pytest.raises(ValueError, match="the ninth"):
            dataset.__getitems__([1, 9])
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(dataset.__getitem__, 5).result()[".txt"] == "text 5"
        assert seen == [True] * 4 + [False]
        assert access._together.get() is None
