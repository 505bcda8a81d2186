"""Rows of files that are joined."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wids.shards import policy
from wids.tables.join_fields import JoinedColumns, Names
from wids.tables.join_rows import file_rows


class CountedFile(io.BytesIO):
    """Bytes that count how many of them are read."""

    num_read = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.num_read += len(data)
        return data


def test_other_columns_of_parquet_are_not_read() -> None:
    """A few columns of a file of embeddings cost what they have."""
    vectors = np.random.default_rng(0).random(100_000)
    table = pa.table({"id": [f"{n}" for n in range(100)], "score": range(100)})
    wide = table.append_column("emb", pa.array(np.split(vectors, 100)))
    file = CountedFile()
    pq.write_table(wide, file)
    file.seek(0)
    file.num_read = 0
    side = file_rows(file, "a.parquet", Names(""), JoinedColumns("id", ("score",)))
    assert side.read(np.array([7, 3]), policy.Wanted.SAMPLES) == [
        {".score": 7, "__key__": "7"},
        {".score": 3, "__key__": "3"},
    ]
    assert max(file.num_read, side.held_nbytes) < len(file.getvalue()) / 5
