"""Trainers on two ranks that would shard an order again: noticed, and only then."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import need

sys.path.append(str(Path(__file__).parents[1] / "processes"))
import jobs

pytestmark = pytest.mark.long  # each job is two processes, and imports for seconds

# What each program begins with. A case is a loader: what it yields, and what wids warns of it.
PRELUDE = """
import json, sys, warnings
from contextlib import contextmanager
import torch, wids
from torch.utils.data import DataLoader

class Numbers:
    lengths = [40, 40]
    def __len__(self): return 80
    def __getitem__(self, index): return {"index": index}
    def __getitems__(self, indices): return [{"index": index} for index in indices]

NUMBERS = Numbers()

@contextmanager
def case(name, rank):
    seen = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield seen
    remarks = [str(w.message) for w in caught if "Sampler: " in str(w.message)]
    line = {"case": name, "rank": rank, "seen": seen, "remarks": remarks}
    sys.stdout.write("\\nCASE " + json.dumps(line) + "\\n")
    sys.stdout.flush()
"""

ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)

def read(name, loader):
    with case(name, accelerator.process_index) as seen:
        for batch in loader:
            seen += batch["index"].tolist()

own = wids.DistributedChunkedSampler(NUMBERS)
read("prepared", accelerator.prepare(DataLoader(NUMBERS, batch_size=4, sampler=own)))
ahead = wids.BucketBatchSampler(wids.DistributedChunkedSampler(NUMBERS), [0] * 80, 4)
loader = DataLoader(NUMBERS, batch_sampler=ahead)
read("prepared buckets", accelerator.prepare(loader))
stream = wids.stream(NUMBERS, wids.DistributedChunkedSampler(NUMBERS), batch_size=4)
read("prepared stream", accelerator.prepare(DataLoader(stream, batch_size=4)))
own = wids.DistributedChunkedSampler(NUMBERS)
read("not prepared", DataLoader(NUMBERS, batch_size=4, sampler=own))
whole = wids.ChunkedSampler(NUMBERS)
read("one order", accelerator.prepare(DataLoader(NUMBERS, batch_size=4, sampler=whole)))
accelerator.end_training()
"""

TRANSFORMERS = """
import tempfile
from transformers import Trainer, TrainingArguments
from wids import SamplerTrainer

class Model(torch.nn.Module):
    def __init__(self, seen):
        super().__init__()
        self.weight, self.seen = torch.nn.Parameter(torch.zeros(1)), seen
    def forward(self, index, **_):
        self.seen += index.tolist()
        return {"loss": (self.weight * index.float()).sum()}

class Plain(Trainer):
    def _get_train_sampler(self, *_):
        return wids.DistributedChunkedSampler(NUMBERS)

def train(name, kind, **options):
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, num_train_epochs=1,
        save_strategy="no", remove_unused_columns=False, report_to="none", disable_tqdm=True,
        use_cpu=True, ddp_backend="gloo",
    )
    with case(name, arguments.process_index) as seen:
        kind(model=Model(seen), args=arguments, train_dataset=NUMBERS, **options).train()

train("plain", Plain)
train("ours", SamplerTrainer, train_sampler=wids.DistributedChunkedSampler(NUMBERS))
# Or a thread of gloo may abort the process; see examples/train_ddp.py.
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""

LIGHTNING = """
import lightning

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight, self.seen = torch.nn.Parameter(torch.zeros(1)), []
    def training_step(self, batch, _):
        self.seen += batch["index"].tolist()
        return (self.weight * batch["index"].float()).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def train(name, sampler):
    trainer = lightning.Trainer(
        accelerator="cpu", strategy="ddp", devices=2, max_epochs=1, logger=False,
        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
    )
    module = Module()
    with case(name, trainer.global_rank) as seen:
        trainer.fit(module, DataLoader(NUMBERS, batch_size=4, sampler=sampler))
        seen += module.seen

train("whole", wids.ChunkedSampler(NUMBERS))
train("share", wids.DistributedChunkedSampler(NUMBERS))
"""


def run(tmp_path: Path, program: str, *packages: str) -> dict[str, list[dict[str, Any]]]:
    """Run a program on two ranks; return its cases, each with one entry for each rank."""
    for package in packages:
        need(importlib.util.find_spec(package), f"pip install {package}")
    script = tmp_path / "program.py"
    script.write_text(PRELUDE + program)
    printed = jobs.run(jobs.forked(2, script))
    cases: dict[str, list[dict[str, Any]]] = {}
    for line in printed.splitlines():
        if line.startswith("CASE "):
            found = json.loads(line.removeprefix("CASE "))
            cases.setdefault(found["case"], []).append(found)
    assert all(sorted(c["rank"] for c in both) == [0, 1] for both in cases.values()), printed
    return cases


def remarks(ranks: list[dict[str, Any]]) -> list[str]:
    return [remark for rank in ranks for remark in rank["remarks"]]


def seen(ranks: list[dict[str, Any]]) -> list[int]:
    return sorted(index for rank in ranks for index in rank["seen"])


def test_accelerate(tmp_path: Path) -> None:
    """A prepared loader loses half of each share and warns; with one order for all it is right."""
    cases = run(tmp_path, ACCELERATE, "accelerate")

    for name in ("prepared", "prepared buckets", "prepared stream"):
        assert len(set(seen(cases[name]))) == 40, name
        assert any("has its share already" in remark for remark in remarks(cases[name])), name
    both = remarks(cases["prepared"])
    assert len(both) == 2
    assert "BatchSamplerShard (accelerate) shards it again" in both[0]
    assert "leave the loader out of accelerator.prepare()" in both[0]
    for name in ("not prepared", "one order"):
        assert remarks(cases[name]) == []
        assert seen(cases[name]) == list(range(80)), name


def test_transformers(tmp_path: Path) -> None:
    """A trainer whose sampler is replaced by hand warns; `SamplerTrainer` reads all."""
    cases = run(tmp_path, TRANSFORMERS, "transformers", "accelerate")

    assert len(set(seen(cases["plain"]))) == 40
    assert len(remarks(cases["plain"])) == 2
    assert "use wids.SamplerTrainer" in remarks(cases["plain"])[0]
    assert remarks(cases["ours"]) == []
    assert seen(cases["ours"]) == list(range(80))


def test_lightning(tmp_path: Path) -> None:
    """Lightning wraps a `ChunkedSampler`, which warns, and leaves a distributed one alone."""
    cases = run(tmp_path, LIGHTNING, "lightning")

    assert len(remarks(cases["whole"])) == 2
    assert (
        "DistributedSamplerWrapper (lightning) lists the whole epoch" in remarks(cases["whole"])[0]
    )
    assert remarks(cases["share"]) == []
    for ranks in cases.values():
        assert seen(ranks) == list(range(80))
