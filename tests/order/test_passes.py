"""Passes that are repeated, left early, or begun twice: what they read, and who is warned."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from torch.utils.data import DataLoader

from wids import BucketBatchSampler, ChunkedSampler, DistributedChunkedSampler

NUM_SAMPLES = 6000


def indices(**others: Any) -> ChunkedSampler:
    return ChunkedSampler(range(NUM_SAMPLES), **others)


def batches(**others: Any) -> BucketBatchSampler:
    return BucketBatchSampler(indices(**others), [n % 7 for n in range(NUM_SAMPLES)], 20)


@pytest.mark.parametrize(("make", "many"), [(indices, 1000), (batches, 50)])
def test_third_pass_from_the_same_place_warns(make: Callable[[], Any], many: int) -> None:
    """Two passes that were left early, and a third would read the same again (ORDER-48)."""
    sampler = make()
    first = [list(islice(sampler, many)) for _ in range(2)]
    assert first[0] == first[1]
    message = rf"two passes of epoch 0 ended early, the latest after {many} of {len(sampler)},.*set"
    with pytest.warns(UserWarning, match=message) as caught:
        iter(sampler)
    iter(sampler)
    assert list(islice(sampler, many)) == first[0]
    assert len(caught) == 1


def test_fixed_epoch_that_is_left_early_warns_too() -> None:
    """``set_epoch`` once before several short passes loses the rest of the data (ORDER-48)."""
    sampler = indices()
    sampler.set_epoch(4)
    for _ in range(2):
        list(islice(sampler, 2000))
    with pytest.warns(UserWarning, match="two passes of epoch 4 ended early"):
        next(iter(sampler))


def look(sampler: Any) -> None:
    list(islice(sampler, 999))


def set_each(sampler: Any) -> None:
    sampler.set_epoch(sampler.epoch + 1)
    list(islice(sampler, 3000))


def continued(sampler: Any) -> None:
    list(islice(sampler, 1500))
    sampler.load_state_dict(sampler.state_dict())


def whole(sampler: Any) -> None:
    list(sampler)


@pytest.mark.parametrize("use", [look, set_each, continued, whole])
def test_what_loses_nothing_does_not_warn(use: Callable[[Any], None]) -> None:
    """Short looks, epochs that are set, passes that are continued, and complete passes."""
    sampler = indices()
    for _ in range(5):
        use(sampler)


def test_evaluation_on_the_first_samples_does_not_warn() -> None:
    """Without ``shuffle``, the same first samples are read on purpose."""
    sampler = indices(shuffle=False)
    for _ in range(4):
        assert list(islice(sampler, 1500)) == list(range(1500))


def test_passes_that_are_continued_read_everything() -> None:
    """A state that is restored after each short pass reads epoch after epoch, without a gap."""
    sampler, model = indices(), indices()
    expected = [*model, *model]
    found = []
    while len(found) < 2 * NUM_SAMPLES:
        found += islice(sampler, 1700)
        sampler.load_state_dict(sampler.state_dict())
    assert found == expected


def test_two_iterators_at_once_are_independent() -> None:
    """Both have the epoch in which they began; its end is counted once (ORDER-49)."""
    sampler = indices()
    expected = list(indices())
    one, two = iter(sampler), iter(sampler)
    taken = [next(one) for _ in range(7)], [next(two) for _ in range(3)]
    assert sampler.state_dict()["position"] == 3, "that of the latest"
    assert taken[0] + list(one) == expected
    assert sampler.epoch == 1
    assert taken[1] + list(two) == expected
    assert sampler.epoch == 1


def test_break_in_a_loader_with_workers_begins_again() -> None:
    """Workers that ran ahead change nothing: the next pass begins at the start (ORDER-48)."""
    sampler = indices()
    loader: DataLoader[Any] = DataLoader(
        range(NUM_SAMPLES),  # type: ignore[arg-type]
        batch_size=100,
        sampler=sampler,
        num_workers=1,
    )
    passes = [[batch.tolist() for batch in islice(loader, 3)] for _ in range(2)]
    assert passes[0] == passes[1]
    assert sampler.epoch == 0
    state = sampler.state_dict(num_consumed=300)
    resumed = indices()
    resumed.load_state_dict(state)
    assert [n for batch in passes[0] for n in batch] + list(resumed) == list(indices())


def test_dir_has_what_programs_use() -> None:
    """Completion shows settings, epoch and state, and no hook of a subclass but `run_blocks`."""
    sampler = DistributedChunkedSampler(range(9), num_replicas=1, rank=0)
    batches = BucketBatchSampler(sampler, [0] * 9, 2)

    def shown(made: object) -> set[str]:
        return {name for name in dir(made) if not name.startswith("_")}

    common = {"ahead", "drop_last", "epoch", "load_state_dict", "num_canonical", "num_replicas"}
    common |= {
        "dataset_length",
        "indices",
        "rank",
        "set_epoch",
        "shuffle",
        "state_dict",
        "steps_of",
        "yields_indices",
    }
    own = {
        "chunksize",
        "dataset",
        "even",
        "num_samples",
        "redeal",
        "run_blocks",
        "seed",
        "settings",
    }
    assert shown(sampler) == common | own | {"shufflefirst", "total_size"}
    own = {"aligned", "batch_size", "num_left_out", "num_repeated", "sampler", "settings"}
    assert shown(batches) == common | own


def test_a_warning_names_the_line_of_the_program() -> None:
    """What a sampler warns of points at the loop that begins the pass, and not into wids."""
    sampler = ChunkedSampler(range(3000))
    for _ in range(2):
        assert len(list(islice(sampler, 2000))) == 2000
    with pytest.warns(UserWarning, match="ended early") as caught:
        iter(sampler)
    assert [warning.filename for warning in caught] == [__file__]
