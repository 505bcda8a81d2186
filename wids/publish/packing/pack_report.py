"""The report on what was packed, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wids.publish.packing.folder_listing import Skipped
from wids.shards.specs.model import DatasetSpec
from wids.storage.sizes import count_text, nbytes_text
from wids.storage.transport import urls


@dataclass(frozen=True)
class PackReport:
    """What was packed, and what was not. ``str`` has the counts in one line.

    Attributes:
        spec_path: Path of the spec, or its URL.
        spec: The spec.
        fields: The number of samples that have each field, the most frequent first.
        skipped: What was left out and why.
        remarks: What a person should know before training, one sentence each.

    Examples:
        >>> import pathlib, wids
        >>> pathlib.Path("words").mkdir()
        >>> nbytes = pathlib.Path("words", "1.txt").write_text("one")
        >>> report = wids.pack_folder("words", "words")
        >>> report.num_samples, report.nbytes, report.skipped
        (1, 10240, ())
        >>> print(report)
        words.json: 1 sample, 1 shard, 10.2 kB
    """

    spec_path: str
    spec: DatasetSpec
    fields: Mapping[str, int]
    skipped: tuple[Skipped, ...]
    remarks: tuple[str, ...]

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return sum(shard.num_samples or 0 for shard in self.spec.shards)

    @property
    def nbytes(self) -> int:
        """Length of all shards in bytes."""
        return sum(shard.nbytes or 0 for shard in self.spec.shards)

    def __str__(self) -> str:
        counts = [(self.num_samples, "sample"), (len(self.spec.shards), "shard")]
        text = ", ".join(count_text(count, noun) for count, noun in counts)
        return f"{urls.redact(self.spec_path)}: {text}, {nbytes_text(self.nbytes)}"
