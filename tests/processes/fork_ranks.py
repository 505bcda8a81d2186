"""Start the ranks of a job as ``torchrun`` does, as forks of a process that has imported enough.

    python fork_ranks.py 3 PROGRAM ARGUMENTS

An interpreter takes seconds of a processor to import torch and a trainer: here one does, in place
of one for each rank and one for the agent.
"""

from __future__ import annotations

import ast
import os
import runpy
import signal
import socket
import sys
from pathlib import Path


def import_what_it_imports(program: Path) -> None:
    """Do the imports at the top of a program."""
    tree = ast.parse(program.read_text(encoding="utf-8"))
    tree.body = [each for each in tree.body if isinstance(each, (ast.Import, ast.ImportFrom))]
    exec(compile(tree, program, "exec"), {})  # noqa: S102 - our own


def main() -> None:
    """Run a program on each rank; when one fails, kill the others and fail."""
    num_replicas, program = int(sys.argv[1]), sys.argv[2]
    del sys.argv[:2]
    import_what_it_imports(Path(program))
    if "EXAMPLE" in os.environ:  # see `traced.py`
        import_what_it_imports(Path(os.environ["EXAMPLE"]))
    os.environ.update(WORLD_SIZE=str(num_replicas), LOCAL_WORLD_SIZE=str(num_replicas))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(probe.getsockname()[1]))
    running = set()
    for rank in range(num_replicas):
        pid = os.fork()
        if not pid:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            runpy.run_path(program, run_name="__main__")
            return
        running.add(pid)
    while running:
        pid, status = os.wait()
        running.remove(pid)
        if status:
            for other in running:
                os.kill(other, signal.SIGKILL)
            sys.exit(f"a rank ended with status {status}")


if __name__ == "__main__":
    main()
