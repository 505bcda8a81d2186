"""LMDB: a value for each sample, in one memory map."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from peers.map_style import MapStyle
from peers.peer import Data, UnsupportedError, tar_samples


class Lmdb(MapStyle):
    """Samples as pickled dicts, as its users store them."""

    modules = ("lmdb",)

    def __init__(self) -> None:
        self.environments: dict[str, Any] = {}

    def close(self) -> None:
        for environment in self.environments.values():
            environment.close()
        self.environments.clear()

    def value(self, fields: dict[str, bytes]) -> bytes:
        """Return a sample as bytes."""
        return pickle.dumps(fields)

    def convert(self, data: Data) -> None:
        import lmdb

        with lmdb.open(f"{data.folder}/data", map_size=1 << 40) as environment:
            with environment.begin(write=True) as transaction:
                for number, (_, fields) in enumerate(tar_samples(data.shards)):
                    transaction.put(b"%08d" % number, self.value(fields), append=True)

    def transaction(self, data: Data) -> Any:
        import lmdb

        path = f"{data.folder}/data"
        if path not in self.environments:  # a process may open one once
            self.environments[path] = lmdb.open(
                path,
                readonly=True,
                lock=False,
                readahead=data.is_large,  # values of many pages
                meminit=False,
            )
        return self.environments[path].begin()

    def reader(self, data: Data) -> Callable[[int], Any]:
        get, loads = self.transaction(data).get, pickle.loads
        return lambda index: loads(get(b"%08d" % index))

    def batch_reader(self, data: Data) -> Callable[[list[int]], list[Any]]:
        get, loads = self.transaction(data).get, pickle.loads
        return lambda indices: [loads(get(b"%08d" % index)) for index in indices]


class Values(Lmdb):
    """Samples as one value of bytes that nobody takes apart: the least that LMDB takes."""

    def value(self, fields: dict[str, bytes]) -> bytes:
        return b"".join(fields.values())

    def reader(self, data: Data) -> Callable[[int], Any]:
        get = self.transaction(data).get
        return lambda index: get(b"%08d" % index)

    def batch_reader(self, data: Data) -> Callable[[list[int]], list[Any]]:
        get = self.transaction(data).get
        return lambda indices: [get(b"%08d" % index) for index in indices]

    def epoch(self, data: Data, num_workers: int) -> Any:
        raise UnsupportedError("its values are not samples")

    def pictures(self, data: Data, num_workers: int) -> Any:
        raise UnsupportedError("its values are not samples")

    def plain(self, sample: bytes, payload: str) -> tuple[bytes, int]:
        return sample[:-10], int(sample[-10:])


VARIANTS = {"": Lmdb, "values": Values}
