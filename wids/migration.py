"""Explain failed imports of modules of the old library, and of classes of webdataset.

The old ``wids`` had modules such as ``wids.wids_mmtar``, which programs imported from. They are
gone; importing one fails, and the message names the replacement and docs/migration.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

_PAGE: Final = "docs/migration.md"

_REPLACEMENTS: Final = {
    "wids": "wids.ShardListDataset, wids.ShardListSampler, wids.Shard, all at the top level",
    "wids_bench": "benchmarks/table.py in the repository",
    "wids_cleanup": "ShardListDataset(cache_size=...)",
    "wids_decode": "wids.Decoder",
    "wids_dir": "wids.ShardListDataset with a list of paths",
    "wids_dl": "ShardListDataset(cache_dir=...), which downloads shards by itself",
    "wids_index": "wids.build_spec, or the command `wids create`",
    "wids_lru": "ShardListDataset(lru_size=...)",
    "wids_mmtar": "wids.Shard",
    "wids_specs": "wids.load_spec",
    "wids_tar": "wids.Shard",
}

_WEBDATASET: Final = {
    "WebDataset": "wids.ShardListDataset, or wids.stream (see docs/from-webdataset.md)",
    "WebLoader": "torch.utils.data.DataLoader (see docs/from-webdataset.md)",
}


def explain(name: str) -> str | None:
    """Return why there is no ``wids.NAME`` and what replaces it; None for an unknown name."""
    if name in _WEBDATASET:
        return f"wids has no {name}, which is webdataset's; use {_WEBDATASET[name]}"
    replacement = _REPLACEMENTS.get(name)
    if replacement is None:
        return None
    return f"wids.{name} was a module of the old wids; use {replacement} (see {_PAGE})"


class GoneModules:
    """A finder for `sys.meta_path` that finds nothing, and explains imports of old modules.

    It stands last, so it is asked only about modules that no other finder has.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the protocol of finders
        target: ModuleType | None = None,  # noqa: ARG002 - the protocol of finders
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError for a module of the old library; return None otherwise."""
        package, _, name = fullname.partition(".")
        message = explain(name) if package == "wids" else None
        if message is not None:
            raise ModuleNotFoundError(message)
        return None
