"""obstore by hand: ranges of tars whose places are known, from asyncio."""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peers.peer import Data, Peer, UnsupportedError


class Obstore(Peer):
    """A request for both members of each sample, which lie beside each other."""

    modules = ("obstore",)

    def convert(self, data: Data) -> None:
        raise UnsupportedError("it is a limit, not a library of datasets")

    def publish(self, data: Data, folder: str) -> None:
        """Nothing: the tars are served as they are."""

    def remote_reader(self, data: Data, url: str, cache: str) -> Callable[[list[int]], list[Any]]:
        from obstore import get_range_async
        from obstore.store import HTTPStore

        places = []
        for shard in data.shards:
            with tarfile.open(shard) as archive:
                members = [(m.name.split(".", 1)[1], m.offset_data, m.size) for m in archive]
            places += [(Path(shard).name, members[n : n + 2]) for n in range(0, len(members), 2)]
        store, loop = HTTPStore(url, client_options={"allow_http": True}), asyncio.new_event_loop()

        async def sample(index: int) -> dict[str, Any]:
            name, fields = places[index]
            start, stop = fields[0][1], fields[-1][1] + fields[-1][2]
            content = memoryview(await get_range_async(store, name, start=start, end=stop))
            return {
                field: content[offset - start : offset - start + nbytes]
                for field, offset, nbytes in fields
            }

        async def samples(indices: list[int]) -> list[dict[str, Any]]:
            return list(await asyncio.gather(*map(sample, indices)))

        return lambda indices: loop.run_until_complete(samples(indices))

    def plain(self, sample: Any, payload: str) -> tuple[bytes, int]:
        return bytes(sample[payload]), int(bytes(sample["cls"]))


VARIANTS = {"": Obstore}
