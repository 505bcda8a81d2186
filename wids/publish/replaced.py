"""Replace a dataset: move its spec aside meanwhile, and delete its remaining shards at the end.

No reader mixes shards of both datasets: there is no spec between the first new shard and the last.
Only shards that the previous spec lists under the names of the new ones are deleted. A dataset of
which a rewrite has kept shards is left as it is; `left_behind` has the rest of its files.
"""

from __future__ import annotations

import glob
import logging
import os
import re
import tarfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final

from wids.errors import WidsError, message_of
from wids.publish.journal import Journal, is_journal
from wids.publish.output import Output
from wids.publish.problems import Problem
from wids.shards.indexes.pack import MAGIC
from wids.shards.specs.model import DatasetSpec
from wids.shards.specs.naming import is_document
from wids.storage import upload
from wids.storage.sizes import count_text
from wids.storage.transport import urls

_JOURNAL: Final = re.compile(r"\.(packing|rewriting|partial)(-\d+-of-\d+)?(\.unfinished)?")

_PARQUET: Final = b"PAR1"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Replaced:
    """A previous dataset, which may exist where a new one is written.

    Attributes:
        output: Where.
    """

    output: Output

    @property
    def aside_path(self) -> str:
        """Absolute path or URL of the spec while shards change."""
        return self.output.spec_path + ".replaced"

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Move the spec, if there is one, to another name before its shards are replaced.

        It is moved back if the block fails before any local shard was replaced.
        """
        spec_path, options = self.output.spec_path, self.output.storage_options
        if not upload.exists(spec_path, options):
            yield
            return
        # After a kill between the new spec and the deletion of the old shards.
        if upload.exists(self.aside_path, options):
            listed = self._listed(spec_path)
            if listed is not None:
                self.remove_others(listed)
        before = self._states()
        try:
            upload.move(spec_path, self.aside_path, options)
            yield
        except BaseException:
            if before is not None and before == self._states() and self.is_unfinished():
                upload.move(self.aside_path, spec_path, options)
            raise

    def is_unfinished(self) -> bool:
        """Whether a run was killed while it replaced shards, which may be of two datasets."""
        options = self.output.storage_options
        return upload.exists(self.aside_path, options) and not upload.exists(
            self.output.spec_path, options
        )

    def remove_others(self, kept: Collection[str]) -> None:
        """Delete the shards that the old spec lists and the new dataset lacks, then the old spec.

        Shards that cannot be deleted stay; see `remark_on_others`. If the old spec cannot be read,
        nothing is deleted.

        Args:
            kept: Paths or URLs of the shards of the new dataset, whose spec is published.
        """
        options = self.output.storage_options
        if not upload.exists(self.aside_path, options):
            return
        listed = self._listed(self.aside_path)
        if listed is None:
            return
        for path in sorted(listed.intersection(self._others(kept))):
            with suppress(OSError):
                upload.remove(path, options)
        upload.remove(self.aside_path, options)

    def remark_on_others(self, kept: Collection[str]) -> str | None:
        """Return a remark on existing shards that are not in the new dataset, if there are any."""
        others = self._others(kept)
        if not others:
            return None
        first, count = os.path.basename(others[0]), count_text(len(others), "shard")
        return f"{count} of an earlier dataset, from {first} on, not in the spec: move them away"

    def _others(self, kept: Collection[str]) -> list[str]:
        return [path for path in self.output.existing_shards() if path not in kept]

    def _listed(self, spec_path: str) -> set[str] | None:
        """Return the shards that a spec lists; None, with a warning, if it cannot be read."""
        try:
            spec = self.output.spec_at(spec_path)
        except (WidsError, OSError) as error:
            _logger.warning(
                "%s: expected a spec, found: %s; no shard that only it lists is deleted",
                *(urls.redact(spec_path), error),
            )
            return None
        return {shard.url for shard in spec.shards}

    def _states(self) -> list[tuple[str, int, int]] | None:
        """Return what changes when a local shard or pack is replaced; None if one is remote."""
        if not (urls.is_local(self.output.spec_path) and self.output.is_local):
            return None
        states = []
        for path in (*self.output.existing_shards(), self.output.pack_path):
            with suppress(FileNotFoundError):
                status = os.stat(path)
                states.append((path, status.st_ino, status.st_mtime_ns))
        return states


def left_behind(old: DatasetSpec, new: DatasetSpec, document: str) -> list[str]:
    """Return the files of a dataset that are not part of the one that replaces some of its shards.

    These are shards, the saved table, journals of interrupted runs, and packs. Indexes of other
    programs are none of them. Nothing is left behind if the new dataset has all shards of the old
    one.

    Args:
        old: The old dataset.
        new: The new one.
        document: Path or URL that the old one was loaded from.
    """
    kept = set(map(_real, chain((shard.url for shard in new.shards), _packs(new))))
    shards = [shard.url for shard in old.shards if _real(shard.url) not in kept]
    if not shards:
        return []
    table = [] if old.table is None else [old.table.url]
    packs = [url for url in _packs(old) if _real(url) not in kept]
    found = dict.fromkeys([*shards, *table, *_journals(document), *packs])
    return [url for url in found if not urls.is_local(url) or os.path.lexists(urls.local_path(url))]


def remove_left_behind(files: Iterable[str], storage_options: upload.Options) -> list[Problem]:
    """Delete files, and return those that could not be deleted.

    Args:
        files: Their paths or URLs, as `left_behind` returns them.
        storage_options: As for `ShardListDataset`.
    """
    problems = []
    for url in files:
        try:
            if not urls.is_local(url):
                upload.check_writable(url)
                upload.remove(url, storage_options)
            else:
                _remove_local(urls.local_path(url))
        except (OSError, ValueError) as error:
            name = urls.redact(url)
            reason = message_of(error).removeprefix(f"{name}: ")
            problems.append(Problem(name, f"not deleted: {reason}"))
    return problems


def _remove_local(path: str) -> None:
    """Delete a local file that is of a dataset, whatever the document says that names it."""
    if is_journal(path):
        with Journal(path) as log:  # no other process writes to it
            log.delete()
        return
    with open(path, "rb") as file:
        is_known = file.read(len(MAGIC)).startswith((MAGIC, _PARQUET)) or tarfile.is_tarfile(path)
    if not is_known:
        raise ValueError("expected a shard, a pack, a table or a journal, found another file")
    os.unlink(path)


def _packs(spec: DatasetSpec) -> Iterator[str]:
    """Yield the packs that a spec names, without indexes of other programs."""
    own = (shard.index for shard in spec.shards if shard.index)
    own = (url for url in own if not urls.path_of(url).endswith((".idx", ".sqlite")))
    return chain((pack.url for pack in spec.all_packs()), own)


def _journals(document: str) -> list[str]:
    """Return the journals of interrupted runs beside a local document, which has their name."""
    if not (urls.is_local(document) and is_document(document)):
        return []
    stem = os.path.abspath(urls.local_path(document))[: -len(".json")]
    return [
        path
        for path in sorted(glob.glob(glob.escape(stem) + ".*"))
        if _JOURNAL.fullmatch(path, len(stem)) and is_journal(path)
    ]


def _real(url: str) -> str:
    """Return what two names of one local file have in common; a remote URL as it is."""
    return os.path.realpath(urls.local_path(url)) if urls.is_local(url) else url
