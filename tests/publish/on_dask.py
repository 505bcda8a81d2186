"""A program that works on a Dask cluster of two processes, whose workers are killed; for a test."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import doomed
from distributed import Client, LocalCluster


def main(folder: Path) -> None:
    """Run all checks in a folder."""
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            host="127.0.0.1",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
        client.get_executor() as executor,
    ):
        doomed.check_works(executor, folder)
        cluster.scheduler.allowed_failures = 0  # it gives up at the first kill
        doomed.check_lost_task(executor, folder)
        os.chdir(folder)
        doomed.run_block("Client", {"tcp://scheduler:8786": cluster.scheduler.address})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
