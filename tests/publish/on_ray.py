"""A program that works on a local Ray of two processes, whose workers are killed; for a test."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import doomed
import ray


def main(folder: Path) -> None:
    """Run all checks in a folder, on the executor of the documentation."""
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.CRITICAL,
        _node_ip_address="127.0.0.1",
    )
    os.chdir(folder)
    recipe = doomed.run_block("import ray", {})
    doomed.check_works(recipe["OnRay"](), folder)
    recipe["call"] = recipe["call"].options(max_retries=0)  # Ray gives up at the first kill
    doomed.check_lost_task(recipe["OnRay"](), folder)
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
