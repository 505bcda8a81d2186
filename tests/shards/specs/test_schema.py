"""The JSON Schema and the loader accept and refuse the same documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wids.cli import demo_command
from wids.shards.specs.loader import load_spec

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "specs.json").read_text())


def test_schema_is_valid(validator: Any) -> None:
    """The schema is valid under its meta-schema."""
    validator.check_schema(validator.schema)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["name"])
def test_schema_accepts_every_form(validator: Any, golden: dict[str, Any]) -> None:
    """The schema accepts what the loader accepts, and what a spec writes."""
    for document in (golden["document"], *golden.get("others", {}).values()):
        validator.validate(document)
    if "others" not in golden and "at" not in golden:
        validator.validate(load_spec(golden["document"], base="/data").document("/data"))


def test_schema_accepts_a_saved_table(validator: Any) -> None:
    """A document with a table, and what is written of it (TABLE-12)."""
    entry = {"url": "a.parquet", "fingerprint": "0f"}
    document = {"shardlist": [{"url": "a.tar"}], "table": entry}
    validator.validate(document)
    written = load_spec(document, base="/data").document("/data")
    validator.validate(written)
    assert written["table"] == entry


def test_schema_accepts_what_the_demo_writes(validator: Any, tmp_path: Path) -> None:
    """The output of the writers is valid under the schema."""
    validator.validate(json.loads(Path(demo_command.write_dataset(str(tmp_path))).read_text()))


@pytest.mark.parametrize(
    "document",
    [
        {"a.tar": 3, "b/c.tar": 0},
        {"shard_counts": {"parts/a.tar": 3}, "energon_version": "7.4.1"},
        {"splits": {"train": {"name": "t", "filenames": ["a.tar"], "shard_lengths": [3]}}},
    ],
)
def test_schema_accepts_what_other_programs_write(validator: Any, document: Any) -> None:
    """Documents with counts are valid, and what is written of them too (SPEC-1)."""
    validator.validate(document)
    spec = load_spec(document, base="/data")
    assert spec.shards[0].num_samples == 3
    validator.validate(spec.document("/data"))


@pytest.mark.parametrize(
    "document",
    [
        {"a.tar": -3},
        {"a.tar": "x"},
        {"a.tar": 3, "name": "b"},
        {"shard_counts": 3},
        {"shard_counts": {"a.tar": -3}},
        {"splits": ["train"]},
        {"splits": {"train": {"filenames": ["a.tar"]}}},
        [],
        {},
        {"name": "x"},
        {"shardlist": "a.tar"},
        {"shardlist": [7]},
        {"shardlist": [{"nsamples": 1}]},
        {"shardlist": [{"url": ""}]},
        {"shardlist": [{"url": "a.tar", "nsamples": -1}]},
        {"shardlist": [{"url": "a.tar", "nsamples": 1.5}]},
        {"shardlist": [{"url": "a.tar", "nsamples": "9"}]},
        {"shardlist": [{"url": "a.tar", "md5sum": 5}]},
        {"shardlist": ["a.tar"], "wids_version": 2},
        {"shardlist": ["a.tar"], "base": 5},
        {"shardlist": ["a.tar"], "key_split": "middle"},
        {"datasets": [3]},
        {"datasets": [{"source_url": 3}]},
        {"datasets": [{"weight": 1}]},
        {"datasets": [{"weight": "1", "shardlist": ["a.tar"]}]},
        {"datasets": [{"weight": -1, "shardlist": ["a.tar"]}]},
        {"shardlist": ["a.tar"], "weights": {"a": -1}},
        {"shardlist": ["a.tar"], "weights": [1]},
        {"shardlist": ["a.tar"], "table": "a.parquet"},
        {"shardlist": ["a.tar"], "table": {"url": "a.parquet"}},
        {"shardlist": ["a.tar"], "table": {"url": "", "fingerprint": "0f"}},
        {"shardlist": ["a.tar"], "table": {"url": "a.parquet", "fingerprint": 7}},
    ],
)
def test_schema_and_loader_refuse_the_same(validator: Any, document: Any) -> None:
    """Each named mistake is refused by both (SPEC-3)."""
    assert not validator.is_valid(document)
    with pytest.raises(ValueError, match="expected"):
        load_spec(document, base="/data")
