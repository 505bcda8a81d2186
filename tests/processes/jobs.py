"""Start the examples, kill them, and read which samples they used.

Users start them by ``torchrun``, that is ``python -m torch.distributed.run``, with gloo on
loopback. Jobs that are killed, and started again, are forks of one process (`fork_ranks.py`).
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from conftest import write_tar
from PIL import Image

EXAMPLES = Path(__file__).parents[2] / "examples"


def write_pictures(folder: Path, lengths: Iterable[int]) -> Path:
    """Write shards of small pictures and their classes, and a spec; return its path."""
    pictures = []
    for label in range(4):
        stream = io.BytesIO()
        Image.new("RGB", (64, 64), (60 * label, 128, 255 - 60 * label)).save(stream, "JPEG")
        pictures.append(stream.getvalue())
    shardlist, start = [], 0
    for number, length in enumerate(lengths):
        members = []
        for sample in range(start, start + length):
            members += [(f"{sample:06d}.jpg", pictures[sample % 4])]
            members += [(f"{sample:06d}.cls", b"%d" % (sample % 4))]
        path = write_tar(folder / f"pictures-{number:06d}.tar", members)
        entry = {"url": path.name, "nsamples": length, "filesize": path.stat().st_size}
        shardlist.append(entry)
        start += length
    spec = folder / "pictures.json"
    spec.write_text(json.dumps({"shardlist": shardlist}))
    return spec


def torchrun(num_replicas: int, *arguments: object) -> list[str]:
    """Return the command that runs an example in several processes on one node."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--local-addr", "127.0.0.1", "--nproc-per-node", str(num_replicas)),
        *map(str, arguments),
    ]


def forked(num_replicas: int, *arguments: object) -> list[str]:
    """Return the command that runs a program in several processes, which takes fewer seconds."""
    program = str(Path(__file__).with_name("fork_ranks.py"))
    return [sys.executable, program, str(num_replicas), *map(str, arguments)]


def traced(
    command: list[str], folder: Path, kill_at: int | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return the command that logs in a folder which samples an example uses, and its environment.

    See `traced.py`.

    Args:
        command: The command.
        folder: The folder.
        kill_at: The step after which it will be killed; see `held`.
    """
    folder.mkdir(exist_ok=True)
    (example,) = [word for word in command if word.startswith(f"{EXAMPLES}{os.sep}")]
    program = str(Path(__file__).with_name("traced.py"))
    replaced = [program if word == example else word for word in command]
    return replaced, {"EXAMPLE": example, "TRACE": str(folder), **held(kill_at)}


def traced_steps(command: list[str], folder: Path, kill_at: int | None = None) -> list[Step]:
    """Run an example to its end, or kill it after a step; return the steps that it took."""
    command, environment = traced(command, folder, kill_at)
    if kill_at is None:
        run(command, **environment)
    else:
        with started(command, **environment) as job:
            wait_for_step(job, folder, kill_at)
            kill(job)
    return steps(folder)


def held(kill_at: int | None) -> dict[str, str]:
    """Return the environment of a job that will be killed after a step.

    It does not end before: a few steps later it waits.
    """
    return {} if kill_at is None else {"LAST_STEP": str(kill_at + 3)}


def environment(**others: str) -> dict[str, str]:
    """Return the environment of a job: one thread per process, as torchrun would choose."""
    return {**os.environ, "OMP_NUM_THREADS": "1", **others}


def run(command: list[str], timeout_s: float = 200, **others: str) -> str:
    """Run a job to its end and return its output."""
    with started(command, **others) as job:
        output, _ = job.communicate(timeout=timeout_s)
    assert job.returncode == 0, output
    return output


@contextmanager
def started(command: list[str], **others: str) -> Iterator[subprocess.Popen[str]]:
    """Start a job, and kill what is left of it at the end."""
    with subprocess.Popen(
        command,
        env=environment(**others),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as job:
        try:
            yield job
        finally:
            kill(job)


def kill(job: subprocess.Popen[str]) -> None:
    """Kill -9 the agent, the ranks that it started, and their workers."""
    family: list[int] = []
    # Stopped first, also what they start meanwhile: a parent whose child dies would clean up.
    while job.poll() is None and (others := set(_family(job.pid)).difference(family)):
        for pid in others:
            _signal(pid, signal.SIGSTOP)
        family += others
    for pid in family:
        _signal(pid, signal.SIGKILL)
    job.wait()


def _family(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it has ended
            for child in task.read_text().split():
                found += _family(int(child))
    return found


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


@dataclass(frozen=True)
class Step:
    """The samples that a rank used in a step."""

    rank: int
    epoch: int
    number: int
    indices: tuple[int, ...]


def steps(folder: Path) -> list[Step]:
    """Return all steps of all ranks of a job, from its log; an incomplete line does not count."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        lines = path.read_text().split("\n")[:-1]
        for line in map(json.loads, lines):
            step = Step(int(path.stem), line["epoch"], line["step"], tuple(line["indices"]))
            found.append(step)
    return found


def used(found: Iterable[Step], epoch: int) -> list[int]:
    """Return the samples that were used in an epoch, sorted."""
    return sorted(index for step in found if step.epoch == epoch for index in step.indices)


def wait_for_step(job: subprocess.Popen[str], folder: Path, number: int) -> None:
    """Wait until a job has used the samples of a step on some rank."""
    until_s = time.monotonic() + 600  # the time-out of most tests is shorter; Ray's start is long
    while not any(_last_step(path) >= number for path in folder.glob("*.jsonl")):
        assert job.poll() is None, f"the job ended before step {number}: {job.communicate()[0]}"
        assert time.monotonic() < until_s, f"step {number} was not reached in ten minutes"
        time.sleep(0.01)


def _last_step(path: Path) -> int:
    """Return the last step of a rank; 0 before it has a complete line."""
    line = path.read_bytes().rpartition(b"\n")[0].rpartition(b"\n")[2]
    return int(json.loads(line)["step"]) if line else 0
