"""A job on two nodes: two torchrun agents on loopback, each with a cache folder of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

from conftest import sample_members, write_tar
from loopback import Server

SCRIPT = Path(__file__).with_name("two_nodes.py")
NUM_SHARDS, LENGTH, NUM_RANKS = 10, 25, 4


def test_each_node_fetches_its_share(server: Server, tmp_path: Path) -> None:
    """Each sample once; each node asks for its part of the shards, once, in two epochs.

    By default a rank has the same slice of the dataset in every epoch, so that a node needs the
    shards of its slices only, and at most one at a boundary for each rank beyond its share.
    """
    shardlist = []
    for number in range(NUM_SHARDS):
        members = sample_members(number * LENGTH, (number + 1) * LENGTH)
        body = write_tar(tmp_path / f"{number}.tar", members).read_bytes()
        server.page(f"/{number}.tar", body)
        shardlist.append({"url": f"{number}.tar", "nsamples": LENGTH, "filesize": len(body)})
    spec = server.page("/spec.json", {"shardlist": shardlist})
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    agents = []
    for node in range(2):
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"),
            *("--node-rank", str(node), "--nproc-per-node", "2"),
            *("--master-addr", "127.0.0.1", "--master-port", str(port)),
            *(str(SCRIPT), spec, str(tmp_path)),
        ]
        env = {**os.environ, "WIDS_CACHE": str(tmp_path / f"node{node}"), "OMP_NUM_THREADS": "1"}
        agents.append(
            subprocess.Popen(
                command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    for agent in agents:
        output, _ = agent.communicate(timeout=200)
        assert agent.returncode == 0, output

    reports = [json.loads((tmp_path / f"{r}.json").read_text()) for r in range(NUM_RANKS)]
    for epoch in range(2):
        seen = Counter(index for report in reports for index in report["seen"][epoch])
        assert seen == Counter(range(NUM_SHARDS * LENGTH))
    for node in "01":
        asked = [
            r.path for r in server.log if r.path.endswith(".tar") and r.headers["x-node"] == node
        ]
        needed = {
            f"/{index // LENGTH}.tar"
            for report in reports
            if report["node"] == node
            for index in report["seen"][0]
        }
        assert Counter(asked) == Counter(needed)
        assert len(asked) <= NUM_SHARDS // 2 + 2
