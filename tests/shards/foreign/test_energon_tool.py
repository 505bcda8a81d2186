"""What Energon's own tool writes beside shards is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from beside_files import bytes_of, serve, shards
from loopback import Server

import wids

PREPARE = """
import sys
from pathlib import Path
from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator
WebdatasetPreparator.prepare_dataset(
    Path(sys.argv[1]),
    [f"parts/{n:05d}.tar" for n in range(3)],
    split_parts_patterns=[("train", "parts/0000[01].*"), ("val", "parts/00002.*")],
    workers=1,
)
"""


@pytest.mark.long
def test_a_dataset_that_energon_prepared(server: Server, tmp_path: Path) -> None:
    """Its counts and splits serve a remote dataset, and reading is as local."""
    pytest.importorskip("megatron.energon", reason="pip install megatron-energon")
    shards(tmp_path / "d" / "parts", (3, 4, 5))
    program = tmp_path / "prepare.py"
    program.write_text(f"if __name__ == '__main__':\n    exec({PREPARE!r})\n")
    subprocess.run([sys.executable, str(program), str(tmp_path / "d")], check=True, timeout=120)
    serve(server, tmp_path / "d")
    root = f"{server.url}/.nv-meta/.info.json"
    val = wids.load_spec(root, split="val")
    with (
        wids.ShardListDataset(val) as dataset,
        wids.ShardListDataset(tmp_path / "d" / "parts") as local,
    ):
        assert (len(dataset), local.lengths) == (5, [3, 4, 5])
        assert [sample["__key__"] for sample in dataset] == [s["__key__"] for s in local[7:]]
        assert dataset[2][".txt"] == local[9][".txt"]
        assert local.get_stats()[1] == 1
    assert bytes_of(server, "/00000.tar") == bytes_of(server, "/00001.tar") == 0
