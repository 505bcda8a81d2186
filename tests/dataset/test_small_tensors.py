"""Small tensors of a worker's batch: sent by value, and otherwise as torch's."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import wids
from wids.dataset import sending as small_tensors

METHODS = torch.multiprocessing.get_all_start_methods()
forking = torch.multiprocessing.get_context("fork" if "fork" in METHODS else "spawn")


class Numbers:
    """Samples of a few small fields, of every type that torch has names for."""

    def __init__(self, length: int = 40) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            ".cls": index,
            ".npy": np.full((2, 3), index, np.float32),
            ".half": torch.full((2,), index, dtype=torch.bfloat16),
            ".complex": torch.full((2,), index * 1j),
            ".bool": torch.tensor(index % 2 == 0),
            ".picture": torch.full((5, 4, 3), index % 251, dtype=torch.uint8).permute(2, 0, 1),
            ".none": torch.zeros(0, 2),
            ".empty": np.zeros((0,), np.int32),
            ".txt": str(index),
        }


def batches(collate: Any = wids.collate, length: int = 40, **options: Any) -> Iterator[Any]:
    options = {"num_workers": 1, **options}
    return iter(DataLoader(Numbers(length), 4, collate_fn=collate, **options))  # type: ignore[arg-type]


def same(one: Any, other: Any) -> bool:
    """Whether two batches have equal tensors, of equal types and strides."""
    return one.keys() == other.keys() and all(
        torch.equal(one[name], other[name])
        and (one[name].dtype, one[name].stride()) == (other[name].dtype, other[name].stride())
        if isinstance(one[name], torch.Tensor)
        else one[name] == other[name]
        for name in one
    )


def in_shared_memory(batch: dict[str, Any]) -> list[str]:
    return [
        name
        for name, value in batch.items()
        if isinstance(value, torch.Tensor) and value.numel() and value.is_shared()
    ]


def test_they_are_sent_without_shared_memory() -> None:
    """Tensors of all types arrive with values, types and orders, in memory of this process."""
    for here, sent in zip(batches(num_workers=0), batches(), strict=True):
        assert same(here, sent)
        assert in_shared_memory(sent) == []
        for value in sent.values():
            if isinstance(value, torch.Tensor):
                value.zero_()


def test_a_batch_that_was_received_can_be_saved() -> None:
    """Empty tensors of different types too."""
    for batch in batches():
        file = io.BytesIO()
        torch.save(batch, file)
        file.seek(0)
        assert same(batch, torch.load(file, weights_only=True))


@pytest.mark.parametrize("way", ["share", "queue"])
def test_arrays_keep_their_bytes_when_tensors_move(way: str) -> None:
    """An array outlives the move of its tensor to memory that is shared."""
    queue, kept = forking.Queue(), []
    for batch in batches(length=400):
        tensor = batch[".npy"]
        arrays = [tensor.numpy(), tensor[1:, 0].numpy(), memoryview(tensor.numpy())]
        wanted = [bytes(np.ascontiguousarray(array)) for array in arrays]
        if way == "share":
            tensor.share_memory_()
        else:
            queue.put(tensor)
            assert torch.equal(queue.get(), tensor)
        kept.append((arrays, wanted))
        del tensor, batch, arrays
        for old, expected in kept[-20:]:
            assert [bytes(np.ascontiguousarray(array)) for array in old] == expected
    assert len(kept) == 100


def test_memory_that_nothing_reads_is_forgotten() -> None:
    """Of a thousand tensors that were released, the bytes of a few remain."""
    kept = [small_tensors._small_arrived(bytearray(b"abcd")) for _ in range(300)]
    assert len(small_tensors._received) >= 300
    del kept
    for _ in range(1000):
        small_tensors._small_arrived(bytearray(b"abcd"))
    assert len(small_tensors._received) <= 2 * 128


def with_views(samples: list[Any]) -> Any:
    """Return a batch with views of its tensors."""
    batch = wids.collate(samples)
    return {**batch, "part": batch[".npy"][1:], "bits": batch[".npy"].view(torch.int32)}


def test_views_share_the_memory_of_their_tensor() -> None:
    """As with torch, what is written to one is read from the other."""
    for batch in batches(with_views):
        assert in_shared_memory(batch) == []
        batch[".npy"][2] = 9
        assert (batch["part"][1] == 9).all()
        assert (batch["bits"][2].view(torch.float32) == 9).all()


def changed(samples: list[Any]) -> Any:
    """Return a batch whose tensors were shared, resized, or need gradients."""
    batch = wids.collate(samples)
    batch[".cls"].share_memory_()
    batch[".half"].resize_(100_000).zero_()
    batch[".npy"].requires_grad_()
    return batch


def test_what_else_a_tensor_is_goes_torchs_way() -> None:
    """Memory that was shared or resized since, and gradients, arrive as torch sends them."""
    for number, batch in enumerate(batches(changed)):
        assert in_shared_memory(batch) == [".cls", ".half"]
        assert batch[".half"].shape == (100_000,)
        assert batch[".npy"].requires_grad
        assert batch[".cls"].tolist() == list(range(number * 4, number * 4 + 4))


receiving, sending = forking.Pipe(duplex=False)
elsewhere = forking.Queue()


def sent_elsewhere(samples: list[Any]) -> Any:
    """Return a batch that a pipe and another queue send too."""
    batch = wids.collate(samples)
    sending.send(batch)
    elsewhere.put(batch)
    return batch


@pytest.mark.usefixtures("forked")  # others make a pipe of their own
def test_pipes_and_other_queues_send_the_values() -> None:
    """Each receiver has a batch, whichever is the first."""
    loader = batches(sent_elsewhere)
    for here in batches(num_workers=0):
        piped = receiving.recv()
        queued, sent = elsewhere.get(), next(loader)
        assert same(piped, here)
        assert same(queued, here)
        assert same(sent, here)


def many(samples: list[Any]) -> Any:
    """Return many batches in one."""
    return [wids.collate(samples) for _ in range(100)]


def test_a_message_has_a_bound() -> None:
    """A worker sends a few kB by value, and the rest as torch does."""
    for batch in batches(many, length=8):
        small = [value for part in batch for value in part.values() if torch.is_tensor(value)]
        by_value = sum(value.nbytes for value in small if value.numel() and not value.is_shared())
        assert 0 < by_value <= small_tensors._MAX_NBYTES
    for batch in batches(length=8, num_workers=2):
        assert in_shared_memory(batch) == []


MAIN = """
import sys, time, torch, wids
from torch.utils.data import DataLoader, default_collate

class Samples:
    def __len__(self): return 4000
    def __getitem__(self, index):
        return {name: torch.zeros(length + length * name) for name in range(3)}

def collate(samples):
    with open(sys.argv[2], "a") as file:
        file.write("x")
    return {"wids": wids.collate, "torch": default_collate}[sys.argv[1]](samples)

length, ahead = int(sys.argv[3]), int(sys.argv[4])
loader = iter(
    DataLoader(Samples(), 12, num_workers=4, collate_fn=collate, prefetch_factor=ahead)
)
next(loader)
print(*(worker.pid for worker in loader._workers), flush=True)
time.sleep(600)
"""


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="ascii").rsplit(")")[1][1] != "Z"
    except OSError:
        return False


def seconds_to_end(collate: str, marks: Path, length: int, ahead: int) -> float:
    """Return how long workers live after their main process was killed."""
    command = [sys.executable, "-W", "ignore", "-c", MAIN, collate, str(marks)]
    main = subprocess.Popen([*command, str(length), str(ahead)], stdout=subprocess.PIPE, text=True)
    workers: list[int] = []
    try:
        assert main.stdout is not None
        workers = [int(word) for word in main.stdout.readline().split()]
        assert len(workers) == 4
        while marks.stat().st_size < 4 * ahead + 1:  # all that are read ahead
            time.sleep(0.01)
        main.send_signal(signal.SIGKILL)
        start_s = time.monotonic()
        while any(map(is_running, workers)):
            assert time.monotonic() < start_s + 60
            time.sleep(0.05)
        return time.monotonic() - start_s
    finally:
        main.kill()
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        main.communicate()


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize(("length", "ahead"), [(400, 2), (20, 40)])
def test_workers_end_with_a_main_process_that_is_killed(
    tmp_path: Path, length: int, ahead: int
) -> None:
    """No worker outlives it longer than with torch, whatever waits to be sent."""
    by_torch = seconds_to_end("torch", tmp_path / "torch", length, 2)
    assert seconds_to_end("wids", tmp_path / "wids", length, ahead) <= 2 * by_torch + 10


def orphan(answer: Any) -> None:
    """Send whether this process, whose parent was killed, still takes that one for its parent."""
    while os.getppid() == multiprocessing.parent_process().pid:  # type: ignore[union-attr]
        time.sleep(0.01)
    answer.send(os.getppid() == small_tensors._parent())


def start_and_die(answer: Any) -> None:
    forking.Process(target=orphan, args=(answer,)).start()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="orphans have another parent elsewhere")
def test_a_main_process_that_was_killed_before_the_first_batch_is_noticed() -> None:
    """A worker whose first batch takes long is not bound to the process that adopted it."""
    here, there = forking.Pipe(duplex=False)
    main = forking.Process(target=start_and_die, args=(there,))
    main.start()
    main.join()
    assert here.poll(30)
    assert here.recv() is False


def on_no_device(_: int) -> None:
    torch.set_default_device("meta")


@pytest.mark.parametrize("length", [4, 100_000])
def test_the_default_device_of_a_worker_changes_nothing(length: int) -> None:
    """Tensors that are on the CPU are collated there, as by torch."""
    samples = [{"x": torch.full((length,), float(number), device="cpu")} for number in range(4)]
    for collate in (None, wids.collate):
        loader = DataLoader(
            samples,  # type: ignore[arg-type]
            2,
            num_workers=1,
            collate_fn=collate,
            worker_init_fn=on_no_device,
        )
        assert [batch["x"][:, -1].tolist() for batch in loader] == [[0.0, 1.0], [2.0, 3.0]]
