"""Processes that hold parts of one model yield the same samples (ORDER-66)."""

from __future__ import annotations

import gc
import importlib.util
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch.distributed as dist
from conftest import raises, write_tar
from ranks import DATA
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import wids
from wids import BucketBatchSampler, DistributedChunkedSampler, MixedSampler

KINDS: list[Callable[..., Any]] = [DistributedChunkedSampler, MixedSampler]
Job = Callable[[int, int], None]


@pytest.fixture
def job() -> Iterator[Job]:
    """Return what makes this process a rank of a job whose messages arrive nowhere."""
    made = []

    def start(rank: int, world_size: int) -> None:
        if made:
            dist.destroy_process_group()
        made.append(rank)
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)

    yield start
    if dist.is_initialized():
        dist.destroy_process_group()
    # Torch below 2.6 keeps the meshes of which dimensions were taken.
    kept = getattr(device_mesh, "_mesh_resources", None)
    getattr(kept, "child_to_parent_mapping", {}).clear()
    gc.collect()  # meshes are in cycles


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, options) for kind in KINDS for options in ({}, {"num_canonical": 6})),
        *((DistributedChunkedSampler, {name: True}) for name in ("redeal", "drop_last")),
        (DistributedChunkedSampler, {"even": False}),
    ],
)
def test_neighbours_share(
    kind: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes 2k and 2k + 1 of 6 yield what rank k of 3 does (ORDER-66)."""
    monkeypatch.setenv("WORLD_SIZE", "6")
    for rank in range(6):
        monkeypatch.setenv("RANK", str(rank))
        shared = kind(DATA, chunksize=3, replication=2, **options)
        own = kind(DATA, chunksize=3, rank=rank // 2, num_replicas=3, **options)
        assert (shared.rank, shared.num_replicas) == (rank // 2, 3)
        assert list(shared) == list(own)
        assert len(shared) == len(own)
        assert shared.state_dict() == own.state_dict()
        assert repr(shared) == repr(own)


@pytest.mark.parametrize("kind", KINDS)
def test_a_dimension_of_a_mesh(kind: Any, job: Job) -> None:
    """Ranks with the same place in ``mesh["dp"]`` share; several dimensions may be flattened."""
    for rank in range(8):
        job(rank, 8)
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
        cases = [(mesh["dp_replicate"], rank // 4, 2)]
        if hasattr(mesh, "_flatten"):  # since torch 2.5
            cases += [(mesh["dp_replicate", "dp_shard"]._flatten("dp"), rank // 2, 4)]
        for found, place, size in cases:
            sampler = kind(DATA, mesh=found)
            assert list(sampler) == list(kind(DATA, rank=place, num_replicas=size))


def test_samplers_around_it_share_too(job: Job) -> None:
    """Batches of buckets have the rank of the sampler that they wrap."""
    job(5, 8)
    mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
    sampler = DistributedChunkedSampler(DATA, mesh=mesh["dp"])
    batches = BucketBatchSampler(sampler, [n % 2 for n in range(20)], 2)
    own = DistributedChunkedSampler(DATA, rank=2, num_replicas=4)

    assert (batches.rank, batches.num_replicas) == (2, 4)
    assert list(batches) == list(BucketBatchSampler(own, [n % 2 for n in range(20)], 2))


def test_streams_and_prefetchers_share_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both read what the group of this process reads, in its order (ORDER-66)."""
    path = write_tar(tmp_path / "a.tar", [(f"{n:02d}.cls", b"%d" % n) for n in range(20)])
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    with wids.ShardListDataset([(path, 20)], transformations=[]) as dataset:
        expected = list(DistributedChunkedSampler(dataset, rank=1, num_replicas=2))
        sampler = DistributedChunkedSampler(dataset, replication=2)
        ahead = wids.Prefetcher(sampler, dataset)
        assert (ahead.rank, ahead.num_replicas) == (1, 2)
        assert list(ahead) == expected
        sampler.set_epoch(0)
        found = [sample["__index__"] for sample in wids.stream(dataset, sampler)]
    assert found == expected


def test_a_sampler_with_a_mesh_can_be_sent(job: Job) -> None:
    """It keeps numbers, and no process group: workers of a loader receive it."""
    job(5, 8)
    mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
    sampler = DistributedChunkedSampler(DATA, mesh=mesh["dp"])
    sent = pickle.dumps(sampler)
    dist.destroy_process_group()

    assert list(pickle.loads(sent)) == list(sampler)  # noqa: S301 - ours


def test_states_have_only_the_number_of_ranks(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state of 2 x 2 processes resumes with 1 x 3, and with 3 x 1 (ORDER-66)."""
    job(2, 4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    sampler = DistributedChunkedSampler(DATA, mesh=mesh["dp"])
    state = sampler.state_dict(num_consumed=4)
    plain = DistributedChunkedSampler(DATA, rank=1, num_replicas=2)
    assert state == plain.state_dict(num_consumed=4)
    dist.destroy_process_group()
    monkeypatch.setenv("WORLD_SIZE", "3")
    read: dict[int | None, set[int]] = {3: set(), None: set()}
    for replication, seen in read.items():
        for rank in range(3):
            monkeypatch.setenv("RANK", str(rank))
            resumed = DistributedChunkedSampler(DATA, replication=replication)
            resumed.load_state_dict(state)
            seen |= set(resumed)
    done = {
        index
        for rank in range(2)
        for index in list(DistributedChunkedSampler(DATA, rank=rank, num_replicas=2))[:4]
    }
    assert all(seen == set(range(20)) - done for seen in read.values())


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0, "replication": 2}, "found rank and replication; choose one"),
        ({"num_replicas": 2, "replication": 2}, "found num_replicas and replication"),
        ({"replication": 0}, "replication: expected an integer of at least 1, found 0"),
        ({"replication": 1.5}, "replication: expected an integer of at least 1, found 1.5"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_contradicts_is_refused(kind: Any, options: dict[str, Any], message: str) -> None:
    """A rank of one's own, or a shared one: not both."""
    with raises(ValueError, message):
        kind(DATA, **options)


def test_processes_have_to_fill_their_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of processes that is no multiple of ``replication`` is an error at first use."""
    monkeypatch.setenv("WORLD_SIZE", "6")
    sampler = DistributedChunkedSampler(DATA, replication=4)

    with raises(ValueError, "divisor of the 6 processes of the job, 1, 2, 3 or 6, found 4"):
        len(sampler)


def test_meshes_that_name_no_rank_are_refused(job: Job) -> None:
    """Two dimensions, a mesh of others, one of a job that has ended, and what is no mesh."""
    job(2, 4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    sub = mesh["dp"]
    with raises(ValueError, "found 2 ('dp', 'tp')", 'mesh["dp_replicate", "dp_shard"]._flatten()'):
        DistributedChunkedSampler(DATA, mesh=mesh)
    with raises(ValueError, "mesh: expected a mesh that has this process"):
        DistributedChunkedSampler(DATA, mesh=DeviceMesh("cpu", [0, 1]))
    with raises(ValueError, "found mesh and replication; choose one"):
        DistributedChunkedSampler(DATA, mesh=sub, replication=2)
    with raises(TypeError, "ProcessGroup; for a process group pass rank=get_rank(group)"):
        DistributedChunkedSampler(DATA, mesh=dist.group.WORLD)  # type: ignore[arg-type]
    dist.destroy_process_group()
    with raises(ValueError, "of a process group that is initialised"):
        DistributedChunkedSampler(DATA, mesh=sub)


@pytest.mark.parametrize("name", ["tp", "cp", "pp", "dp_cp", "dp_shard_cp"])
@pytest.mark.parametrize("size", [1, 2])
def test_a_dimension_of_a_model_is_refused(name: str, size: int, job: Job) -> None:
    """Its ranks need the same samples; what the error advises is accepted (ORDER-66)."""
    job(2, 4)
    mesh = init_device_mesh("cpu", (4 // size, size), mesh_dim_names=("own", name))
    for kind in KINDS:
        with raises(ValueError, f'samples of their own, found "{name}"', "get_local_rank()"):
            kind(DATA, mesh=mesh[name])
        own = kind(DATA, mesh=mesh["own"])
        assert (own.rank, own.num_replicas) == (2 // size, 4 // size)
        group = mesh[name]
        told = kind(DATA, rank=group.get_local_rank(), num_replicas=group.size())
        assert (told.rank, told.num_replicas) == (0, size)
    assert DistributedChunkedSampler(DATA, mesh=DeviceMesh("cpu", [0, 1, 2, 3])).rank == 2


# What is noticed


def warned(make: Callable[[], Any]) -> list[str]:
    """Return what a sampler warns of in two passes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sampler = make()
        list(sampler)
        list(sampler)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("name", ["tp", "cp", "pp"])
def test_a_mesh_with_shared_dimensions_is_noticed(name: str, job: Job) -> None:
    """A sampler that was told nothing warns once; one that was told something does not."""
    job(2, 4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", name))
    buckets = [0] * 20

    for kind in KINDS:
        (text,) = warned(lambda kind=kind: kind(DATA))
        assert f"the dimensions dp, {name} ({name})" in text
        assert 'mesh=mesh["dp"]' in text
    (text,) = warned(lambda: BucketBatchSampler(DistributedChunkedSampler(DATA), buckets, 2))
    assert f"({name})" in text
    for told in ({"mesh": mesh["dp"]}, {"replication": 1}, {"rank": 2}, {"num_replicas": 4}):
        assert warned(lambda told=told: DistributedChunkedSampler(DATA, **told)) == []


@pytest.mark.parametrize(("shape", "names"), [((4,), ("dp",)), ((4, 1), ("dp", "tp"))])
def test_a_mesh_whose_ranks_share_nothing_is_fine(
    shape: tuple[int, ...], names: tuple[str, ...], job: Job
) -> None:
    """Data parallelism alone, or a dimension of size 1, needs no word."""
    job(2, 4)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)

    assert warned(lambda: DistributedChunkedSampler(DATA)) == []
    assert mesh.size() == 4


def megatron(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return Megatron's `parallel_state` if it is installed, else what we use of it."""
    if importlib.util.find_spec("megatron"):
        from megatron.core import parallel_state

        return parallel_state
    state: Any = ModuleType("megatron.core.parallel_state")
    sizes = {"tensor_model": 1, "pipeline_model": 1, "context": 1}

    def initialize(tensor_model_parallel_size: int, **_: Any) -> None:
        sizes["tensor_model"] = tensor_model_parallel_size

    state.initialize_model_parallel = initialize
    state.model_parallel_is_initialized = lambda: True
    for name in ("tensor_model", "pipeline_model", "context"):
        setattr(state, f"get_{name}_parallel_world_size", partial(sizes.__getitem__, name))
    monkeypatch.setitem(sys.modules, state.__name__, state)
    return state


@pytest.mark.filterwarnings("ignore:Transformer Engine")
@pytest.mark.parametrize("size", [1, 2])
def test_megatron_is_noticed(size: int, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its `parallel_state` says that two ranks hold a model, a sampler warns."""
    job(2, 4)
    state = megatron(monkeypatch)
    state.initialize_model_parallel(
        tensor_model_parallel_size=size, create_gloo_process_groups=False
    )
    try:
        found = warned(lambda: DistributedChunkedSampler(DATA))
    finally:
        getattr(state, "destroy_model_parallel", lambda: None)()

    assert len(found) == (size > 1)
    assert size == 1 or "Megatron's parallel_state has parallel groups (tensor_model=2)" in found[0]
