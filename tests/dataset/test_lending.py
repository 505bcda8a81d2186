"""Buffers that workers lend: every tensor keeps its values for as long as anything reads them.

Workers are those of torch's DataLoader, forked or spawned; a tensor of picture ``n`` has the value
``n`` everywhere, so that one that is overwritten shows by which.
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import wids
from wids.dataset import sending as lending

fcntl, resource = (pytest.importorskip(name) for name in ("fcntl", "resource"))
if "fork" not in torch.multiprocessing.get_all_start_methods() or not hasattr(os, "memfd_create"):
    pytest.skip("no processes that fork, or no memory without a name", allow_module_level=True)
SHAPE = (3, 100, 90)
forking = torch.multiprocessing.get_context("fork")


class Pictures:
    """Samples with a large tensor, a large array, and a number."""

    def __init__(self, length: int, heights: tuple[int, ...] = (SHAPE[1],)) -> None:
        self.length = length
        self.heights = heights

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        height = self.heights[index // 4 % len(self.heights)]
        pixels = torch.full((height, SHAPE[2], 3), index % 251, dtype=torch.uint8)
        return {
            ".jpg": pixels.permute(2, 0, 1),
            ".npy": np.full((100, 60), index, np.float32),
            ".cls": index,
        }


def batches(
    pictures: Pictures, collate: Callable[[list[Any]], Any] = wids.collate, **options: Any
) -> Iterator[Any]:
    options = {"num_workers": 2, **options}
    return iter(DataLoader(pictures, 4, collate_fn=collate, **options))  # type: ignore[arg-type]


def check(batch: dict[str, Any], number: int) -> None:
    """Compare batch ``number`` with its samples."""
    wanted = torch.arange(number * 4, number * 4 + 4)
    assert torch.equal(batch[".cls"], wanted)
    assert (batch[".jpg"] == (wanted % 251).view(4, 1, 1, 1)).all()
    assert (batch[".npy"] == wanted.view(4, 1, 1)).all()


def mapped(process: int | str = "self") -> list[str]:
    """Return the buffers that a process has mapped, each once."""
    lines = Path(f"/proc/{process}/maps").read_text(encoding="utf-8").splitlines()
    return sorted({line.split()[4] for line in lines if "memfd:wids-batch" in line})


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Fail a test after which a buffer is still mapped."""
    yield
    gc.collect()
    assert mapped() == []


def test_buffers_are_used_again() -> None:
    """Sixty batches of two workers pass through a few buffers, with the right values."""
    numbers = set()
    for number, batch in enumerate(batches(Pictures(240))):
        check(batch, number)
        assert batch[".jpg"].is_contiguous(memory_format=torch.channels_last)
        batch[".npy"] += 1  # it is the reader's own
        numbers.update(mapped())
    # Two tensors a batch, and a batch of each worker read, sent, waiting and made.
    assert 2 <= len(numbers) <= 16


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_tensors_that_are_kept_stay_as_they_are(context: str) -> None:
    """Batches, slices, arrays and iterators over them are compared long after."""
    ways: list[Callable[[torch.Tensor], Any]] = [
        lambda tensor: tensor,
        lambda tensor: tensor[1:3, ..., 7],
        lambda tensor: tensor.numpy()[2],
        lambda tensor: memoryview(tensor.permute(0, 2, 3, 1).numpy()),
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: np.from_dlpack(tensor)[:, 1],
        lambda tensor: tensor.permute(0, 2, 3, 1).view(-1).as_strided((5,), (1000,)),
        iter,
    ]
    generator, kept = random.Random(5), []
    loader = batches(Pictures(160), multiprocessing_context=context)
    for batch in loader:
        if generator.random() < 0.5:
            way = generator.choice(ways)
            kept.append((way, way(batch[".jpg"]), way(batch[".jpg"].clone())))
        del batch
        if len(kept) > 10:
            compare(kept.pop(generator.randrange(len(kept))))
    while kept:
        compare(kept.pop())


def compare(item: tuple[Any, Any, Any]) -> None:
    _, held, wanted = item
    if isinstance(held, torch.Tensor):
        assert torch.equal(held, wanted)
    elif isinstance(held, Iterator):
        assert all(torch.equal(*pair) for pair in zip(held, wanted, strict=True))
    else:
        assert bytes(held) == bytes(wanted)


def test_a_forked_process_keeps_what_it_has() -> None:
    """It reads a batch after the process that received it has released it."""
    loader = batches(Pictures(400))
    for _ in range(10):
        first = next(loader)
    may_read, has_read = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.read(may_read[0], 1)
        try:
            # In numpy: torch's threads are not in this process.
            wanted = np.arange(36, 40)
            assert (first[".jpg"].numpy() == wanted.reshape(4, 1, 1, 1)).all()
            assert (first[".npy"].numpy() == wanted.reshape(4, 1, 1)).all()
            del first  # returns nothing to the workers of its parent
            gc.collect()
            os.write(has_read[1], b"y")
        finally:
            os._exit(0)
    del first
    try:
        for number in range(10, 60):
            check(next(loader), number)
        second = next(loader)
    finally:
        os.write(may_read[1], b"x")
        os.close(has_read[1])
        answer = os.read(has_read[0], 1)
        os.waitpid(child, 0)
        for file in (*may_read, has_read[0]):
            os.close(file)
    assert answer == b"y"
    for number in range(61, 80):
        check(next(loader), number)
    check(second, 60)


def test_buffers_end_with_their_last_tensor() -> None:
    """What is left of an epoch is what the program kept, whether its workers live or not."""
    for batch in batches(Pictures(80)):
        last = batch
    del batch
    assert len(mapped()) == 2
    check(last, 19)
    del last
    assert mapped() == []


class Counting:
    """Adds the number of the worker's buffers to a batch."""

    def __call__(self, samples: list[Any]) -> Any:
        return {**wids.collate(samples), "num_buffers": len(mapped())}


@pytest.mark.long
def test_buffers_of_lengths_that_are_not_needed_any_more_are_released() -> None:
    """Batches that become longer, as those of buckets may, leave no trail of buffers."""
    heights = tuple(height for height in (100, 300, 900) for _ in range(100))
    pictures = Pictures(4 * len(heights), heights)
    for number, batch in enumerate(batches(pictures, Counting(), num_workers=1)):
        check(batch, number)
        assert 1 <= batch["num_buffers"] <= 20
    assert batch["num_buffers"] <= 10


def test_persistent_workers_keep_their_buffers() -> None:
    """Further epochs need no new ones."""
    loader: DataLoader[Any] = DataLoader(
        Pictures(80),  # type: ignore[arg-type]
        4,
        num_workers=1,
        persistent_workers=True,
        collate_fn=wids.collate,
    )
    numbers = set()
    for _ in range(4):
        for number, batch in enumerate(loader):
            check(batch, number)
            numbers.update(mapped())
    assert 2 <= len(numbers) <= 10
    del batch, loader


def test_a_buffer_is_lent_until_nothing_reads_it() -> None:
    """It is free again after the last tensor, array, descriptor and process that has it."""
    buffer = lending._Buffer(5000)
    storage = buffer.lend(4000)
    assert storage is not None
    tensor = torch.empty(0, dtype=torch.uint8).set_(storage)
    buffer.memory[:4000] = 7
    array = tensor[5:].numpy()
    del storage, tensor
    assert buffer.lend(10) is None
    assert (array == 7).all()
    start, end = os.pipe()
    child = os.fork()
    if not child:
        os.close(end)
        os.closerange(start + 1, 1000)  # only the map is left
        os.read(start, 1)
        os._exit(0)
    del array
    assert buffer.lend(10) is None
    os.close(end)
    os.waitpid(child, 0)
    os.close(start)
    assert buffer.lend(5000) is not None
    buffer.close()


def test_a_process_that_is_killed_lends_nothing_on() -> None:
    """The system releases the loans of a process that is killed."""
    buffer = lending._Buffer(5000)
    child = forking.Process(target=hold, args=(buffer.lend(5000),))
    child.start()
    assert buffer.lend(5000) is None
    child.kill()
    child.join()
    assert buffer.lend(5000) is not None
    buffer.close()


def hold(_: torch.UntypedStorage) -> None:
    """Wait to be killed."""
    threading.Event().wait()


# What callers do with a batch in the worker.


def pickled(samples: list[Any]) -> Any:
    """Return a batch after copies of every kind."""
    batch = wids.collate(samples)
    copies = [pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch), copy.copy(batch)]  # noqa: S301 - our own
    for other in copies:
        assert type(other) is dict
        assert all(torch.equal(other[name], batch[name]) for name in batch)
    copies[0][".jpg"].zero_()  # its own memory
    return batch


def halved(samples: list[Any]) -> Any:
    """Return the first half of each tensor, twice."""
    batch = wids.collate(samples)
    return {"halves": [tensor[:2] for tensor in batch.values()], "first": batch[".jpg"][:2]}


def shared(samples: list[Any]) -> Any:
    """Return two tensors over one buffer."""
    batch = wids.collate(samples)
    batch["again"] = batch[".jpg"][1:]
    batch["bits"] = batch[".npy"].view(torch.int32)
    return batch


def dropped(samples: list[Any]) -> Any:
    """Return a batch after others were made and not sent."""
    for _ in range(3):
        wids.collate([{**sample, ".cls": 0} for sample in samples])
    return wids.collate(samples)


class Remembering:
    """Keeps the previous batch in the worker, and compares it."""

    def __init__(self) -> None:
        self.previous: list[Any] = []

    def __call__(self, samples: list[Any]) -> Any:
        batch = wids.collate(samples)
        for old, wanted in self.previous:
            assert torch.equal(old, wanted)
        self.previous = [*self.previous[-5:], (batch[".jpg"], batch[".jpg"].clone())]
        return batch


def forked(samples: list[Any]) -> Any:
    """Return a batch that a process reads later, which the worker has forked."""
    batch = wids.collate(samples)
    if batch[".cls"][0] == 16:
        start, wanted = os.pipe(), batch[".jpg"].numpy().copy()
        done.append(os.pipe())
        if not os.fork():
            os.read(start[0], 1)
            os.write(done[0][1], b"y" if (batch[".jpg"].numpy() == wanted).all() else b"n")
            os._exit(0)
        done.append(start)
    if batch[".cls"][0] == 160:
        os.write(done[1][1], b"x")
        assert os.read(done[0][0], 1) == b"y"
        os.wait()
    return batch


done: list[tuple[int, int]] = []


@pytest.mark.parametrize("collate", [pickled, shared, dropped, Remembering(), forked])
def test_what_a_worker_does_with_a_batch(collate: Callable[[list[Any]], Any]) -> None:
    """Copies, views, batches that are dropped or kept, forks: all have their own."""
    kept = []
    for number, batch in enumerate(batches(Pictures(200), collate, num_workers=1)):
        check(batch, number)
        if "again" in batch:
            kept.append((batch["again"], batch["bits"], number))
            del batch
            for again, bits, old in kept[-6:]:
                wanted = torch.arange(old * 4, old * 4 + 4)
                assert (again == (wanted[1:] % 251).view(3, 1, 1, 1)).all()
                assert (bits.view(torch.float32) == wanted.view(4, 1, 1)).all()
    assert number == 49


def moved(samples: list[Any]) -> Any:
    """Return a batch with a tensor twice; torch sends, and moves, the first."""
    batch = wids.collate(samples)
    picture = batch.pop(".jpg")
    batch["pair"] = (picture, 0)
    batch[".jpg"] = picture
    return batch


def odd(samples: list[Any]) -> Any:
    """Return bytes of a buffer as a type that does not fill it."""
    batch = wids.collate(samples)
    first = wids.collate([{".jpg": sample[".jpg"][:, :99, :89]} for sample in samples[:3]])
    pixels = first[".jpg"].view(-1)
    assert pixels.nbytes % 4 == 3
    batch["bits"] = pixels[:-3].view(torch.int32)
    return batch


def sent_elsewhere(samples: list[Any]) -> Any:
    """Return a batch that another queue and a pipe send too."""
    batch = wids.collate(samples)
    elsewhere.put(batch)
    sending.send(wids.collate(samples))
    return batch


elsewhere = forking.Queue()
receiving, sending = forking.Pipe(duplex=False)


@pytest.mark.parametrize("collate", [moved, odd])
def test_what_a_worker_sends_is_what_arrives(collate: Callable[[list[Any]], Any]) -> None:
    """A tensor that torch moves while it is sent, and one of another type, keep their values."""
    kept = []
    for number, batch in enumerate(batches(Pictures(200), collate, num_workers=1)):
        kept = [*kept[-8:], (batch, number)]
        for old, count in kept:
            check(old, count)
            if "bits" in old:
                wanted = (torch.arange(count * 4, count * 4 + 3) % 251).repeat_interleave(26433)
                assert torch.equal(old["bits"].view(torch.uint8), wanted[:-3].to(torch.uint8))


def receive() -> None:
    """Check batches as they arrive in a process of its own, and once more at the end."""
    torch.set_num_threads(1)
    kept = [(receiving.recv(), elsewhere.get()) for _ in range(20)]
    for number, pair in enumerate(kept):
        check(pair[0], number)
        check(pair[1], number)


@pytest.mark.usefixtures("forked")  # others make a pipe of their own
def test_all_that_receive_a_batch_have_its_values() -> None:
    """A pipe and another queue send a batch to a second process, the loader to this."""
    other = forking.Process(target=receive)
    other.start()
    try:
        loader = batches(Pictures(400), sent_elsewhere, num_workers=1)
        for number in range(20):
            check(next(loader), number)
        other.join(30)  # while the worker is there, which it receives from
        assert other.exitcode == 0
    finally:
        other.kill()


def test_arrays_of_tensors_that_are_moved_stay_as_they_are() -> None:
    """An array outlives the move of its tensor to memory that is shared."""
    kept = []
    for number, batch in enumerate(batches(Pictures(120), num_workers=1)):
        array = batch[".jpg"].numpy()
        batch[".jpg"].share_memory_()
        kept.append((array, number))
        for old, count in kept[-8:]:
            wanted = np.arange(count * 4, count * 4 + 4) % 251
            assert (old == wanted.reshape(4, 1, 1, 1)).all()


@pytest.mark.parametrize("way", ["share", "pass on"])
def test_tensors_that_torch_moves_to_named_memory_are_not_taken_for_others(way: str) -> None:
    """A batch in a buffer that was used before is read from there, not from torch's cache."""
    loader, queue, kept = batches(Pictures(120), num_workers=1), forking.Queue(), []
    strategy = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    torch.multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
    try:
        for number, batch in enumerate(loader):
            if way == "share":
                batch[".jpg"].share_memory_()
            else:
                queue.put(batch[".jpg"])
                batch[".jpg"] = queue.get()
            kept = [*kept[-8:], (batch, number)]
            for old, count in kept:
                check(old, count)
    finally:
        torch.multiprocessing.set_sharing_strategy(strategy)  # type: ignore[no-untyped-call]


def test_threads_of_a_worker_have_buffers_of_their_own() -> None:
    """No two tensors are over one buffer."""
    lender, wrong = lending.Lender(), []

    def use(value: int) -> None:
        values = torch.full((50_000,), value, dtype=torch.uint8)
        for _ in range(200):
            tensor = lender.joined([values, values])
            assert tensor is not None
            if (tensor != value).any():
                wrong.append(value)

    threads = [threading.Thread(target=use, args=(value,)) for value in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
    assert len(mapped()) <= 8  # one that is read and one that is written, in each thread
    for buffer in lender._buffers:
        buffer.close()


def test_buffers_take_an_eighth_of_the_descriptors() -> None:
    """A worker whose batches are kept has no more buffers than that."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, limits[1]))
    try:
        lender = lending.Lender()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    values = torch.zeros(50_000, dtype=torch.uint8)
    kept = [lender.joined([values, values]) for _ in range(120)]
    assert len(lender._buffers) == 50
    assert len(mapped()) == len(kept)
    for buffer in lender._buffers:
        buffer.close()


def test_parts_of_batches_share_their_memory() -> None:
    """A collate function that sends parts of a batch sends each byte once, as torch does."""
    numbers: set[str] = set()
    for number, batch in enumerate(batches(Pictures(120), halved, num_workers=1)):
        wanted = torch.arange(number * 4, number * 4 + 2)
        assert (batch["first"] == (wanted % 251).view(2, 1, 1, 1)).all()
        assert torch.equal(batch["halves"][2], wanted)
        assert batch["first"].data_ptr() == batch["halves"][0].data_ptr()
        numbers.update(mapped())
    assert len(numbers) <= 10


def by_name(_: int) -> None:
    torch.multiprocessing.set_sharing_strategy("file_system")


def without_memory(_: int) -> None:
    def memfd_create(_: str) -> int:
        raise OSError(24, "Too many open files")

    os.memfd_create = memfd_create  # type: ignore[assignment]


def without_proc(_: int) -> None:
    lending._Buffer._path = lambda self: f"/nowhere/{self.file}"  # type: ignore[method-assign]


def without_counts(_: int) -> None:
    fcntl.flock = lambda *_: None  # type: ignore[assignment]


@pytest.mark.parametrize("prepare", [by_name, without_memory, without_proc, without_counts])
def test_workers_without_buffers_leave_tensors_to_torch(prepare: Callable[[int], None]) -> None:
    """With torch's other strategy, without memory to be had, and where nothing counts readers."""
    for number, batch in enumerate(batches(Pictures(40), worker_init_fn=prepare)):
        check(batch, number)
        assert batch[".jpg"].is_shared()
        assert mapped() == []


def test_a_worker_that_is_killed_leaves_its_batches() -> None:
    """A batch keeps its values, and its memory goes with it."""
    loader = batches(Pictures(400), num_workers=1)
    batch = next(loader)
    (worker,) = loader._workers  # type: ignore[attr-defined]
    with suppress(RuntimeError):  # of torch, if the worker has ended before it is waited for
        worker.kill()
        worker.join()
    worker.join()
    check(batch, 0)
    del batch
    assert mapped() == []
    with pytest.raises(RuntimeError, match=r"killed|exited unexpectedly"):
        list(loader)
