"""Use the core of wids in processes in which an extension cannot be imported; see `test_core`.

A process for each extension is forked from this one, which has imported torch and nothing of wids.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import torch.utils.data


class Missing:
    """Finds no module of an extension, as if it had been deleted."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Raise what Python does for a module that does not exist."""
        if any(f"{name}.".startswith(f"wids.{missing}.") for missing in self.names):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def core(folder: Path, url: str) -> dict[str, Any]:
    """Return what the core makes of three shards, of 8, 5 and 7 samples."""
    import wids

    found: dict[str, Any] = {}
    path = folder / "train.json"
    found["loaded"] = [shard.num_samples for shard in wids.load_spec(path).shards]
    with wids.ShardListDataset([folder / f"train-{n:06d}.tar" for n in range(3)]) as dataset:
        found["indexed"] = dataset.lengths
    with wids.ShardListDataset(path) as dataset:
        found["read"] = [sample[".txt"] for sample in dataset]
        found["batch"] = [sample[".cls"] for sample in dataset.__getitems__([19, 3])]
        keys = dataset.keys()
        found["keys"] = [len(keys), keys[0], "s00012" in keys, dataset.find_key("s00012")]
        found["by_key"] = dataset.get_by_key("s00012")[".txt"]
        found["fields"] = sorted(dataset.fields)
        found["printed"] = repr(dataset)
        found["ranks"] = [list(sampler_of(dataset, rank)) for rank in range(2)]
        sampler = sampler_of(dataset, 0)
        steps = iter(sampler)
        first = [next(steps) for _ in range(4)]
        other = sampler_of(dataset, 0)
        other.load_state_dict(sampler.state_dict())
        found["resumed"] = [*first, *other]
    options: dict[str, Any] = {"cache_dir": folder / str(os.getpid()), "access": "download"}
    for step in ("fetched", "cached"):  # the second time by nothing but the cache
        with wids.ShardListDataset(f"{url}/train.json", **options) as remote:
            found[step] = [remote[index][".txt"] for index in range(len(remote))]
            found[f"requests of {step}"] = remote.stats()["requests"]
    return found


def sampler_of(dataset: Any, rank: int) -> Any:
    """Return the sampler of one of two ranks."""
    import wids

    return wids.DistributedChunkedSampler(dataset, num_replicas=2, rank=rank, chunksize=4)


def uses(folder: Path) -> dict[str, Sequence[Callable[[], Any]]]:
    """Return calls that lead to extensions, by the first path of each."""
    import wids
    from wids.shards.fields.encode import encode

    def dataset() -> Any:
        return wids.ShardListDataset(folder / "train.json")

    def main() -> Any:
        runpy.run_module("wids", run_name="__main__")

    return {
        "tables": (
            lambda: dataset().table([".cls"]),
            lambda: dataset().join({"s00000": 1}, missing="skip"),
            lambda: wids.save_table,
        ),
        "publish": (lambda: wids.TarWriter, lambda: wids.rewrite, lambda: wids.pack_folder),
        "look": (lambda: dataset().show(), lambda: dataset()._repr_html_()),
        "cli": (main,),
        "shards.fields.audio": (
            lambda: wids.Decoder(audio="numpy"),
            lambda: wids.Decoder(video="frames"),
            lambda: encode(".wav", ([[0.0]], 8000)),
            lambda: wids.Audio,
            lambda: wids.Clips,
        ),
        "shards.foreign": (lambda: wids.load_spec({"a.tar": 5}),),
        "dataset.lightning": (lambda: wids.SamplerCallback, lambda: wids.SamplerTrainer),
        "dataset.timing": (lambda: wids.timings, lambda: wids.StageTimes),
    }


def raised(use: Callable[[], Any]) -> str:
    """Return the name of the missing module that a call names, or what else it does."""
    try:
        return f"returned {use()!r:.200}"
    except ModuleNotFoundError as error:
        return str(error)
    except Exception:  # noqa: BLE001 - shown by the test
        return traceback.format_exc()


def run(names: list[str], folder: Path, url: str) -> dict[str, Any]:
    """Return what the core does without an extension, and what calls of the extension raise."""
    sys.meta_path.insert(0, Missing(names))
    try:
        found = core(folder, url)
    except Exception:  # noqa: BLE001 - shown by the test
        return {"error": traceback.format_exc()}
    found["imported"] = [name for name in sys.modules if name.startswith("wids.")]
    found["raised"] = [raised(use) for use in uses(folder)[names[0]]]
    return found


def main() -> None:
    """Print what each process found, as a line of JSON."""
    assert torch.utils.data  # imported once for all
    assert not [name for name in sys.modules if name.partition(".")[0] == "wids"]
    folder, url = Path(sys.argv[1]), sys.argv[2]
    for names in json.loads(sys.argv[3]):
        child = os.fork()
        if not child:
            sys.stdout.write(json.dumps(run(names, folder, url)) + "\n")
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
