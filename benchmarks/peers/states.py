"""States of loaders, saved and restored as a program does it."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any


def pause(loader: Any, path: str, num_batches: int) -> list[Any]:
    """Read some batches, save the state of a loader that has one; return the next batch."""
    import torch

    batches = iter(loader)
    for _ in islice(batches, num_batches):
        pass
    torch.save(loader.state_dict(), path)
    return next(batches)


def resume(loader: Any, path: str) -> list[Any]:
    """Restore the state; return the first batch."""
    import torch

    loader.load_state_dict(torch.load(path, weights_only=False))
    return next(iter(loader))


def save_json(path: str, value: Any) -> None:
    """Save a state that is JSON."""
    Path(path).write_text(json.dumps(value), encoding="utf-8")


def load_json(path: str) -> Any:
    """Return a saved state."""
    return json.loads(Path(path).read_text(encoding="utf-8"))
