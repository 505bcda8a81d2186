"""Compare the table of shards beside a document with the document."""

from __future__ import annotations

import filecmp
import os
from contextlib import ExitStack

from wids.errors import FetchError
from wids.publish.problems import Problem
from wids.shards.specs.parsing import parse
from wids.shards.specs.shard_table import DamagedTableError, TableFile, open_table, table_url
from wids.shards.specs.shard_table_writer import write_table
from wids.storage.digests import file_digest
from wids.storage.fetch import Fetcher, downloaded
from wids.storage.transport import urls
from wids.storage.unnamed_files import unnamed_file


def table_problems(fetcher: Fetcher, document: str) -> list[Problem]:
    """Return what is wrong with the table beside a document, as a list of at most one.

    All of it is compared: it has to be the file that is made from the document now.

    Args:
        fetcher: Reads URLs.
        document: Path or URL of the document.
    """
    url = table_url(document)
    with ExitStack() as stack:
        try:
            path = stack.enter_context(downloaded(fetcher, url))
            table = open_table(path)
        except FetchError:  # it is optional
            return []
        except DamagedTableError as error:
            return [_problem(url, str(error))]
        if table is None:
            return []
        source = stack.enter_context(downloaded(fetcher, document))
        sha256 = bytes.fromhex(file_digest(source, "sha256"))
        if sha256 != table.header.document_sha256:
            name = os.path.basename(urls.path_of(document))
            return [_problem(url, f"expected the shards of {name}, found another version of it")]
        if not _is_made_from(table, path, source):
            return [_problem(url, "expected the shards of its document, found others")]
    return []


def _is_made_from(table: TableFile, path: str, source: str) -> bool:
    with open(source, "rb") as file, unnamed_file() as (made, made_path):
        document = parse(file.read(), source)
        sha256 = table.header.document_sha256
        write_table(made, document["shardlist"], document, sha256, table.state)
        made.flush()
        return filecmp.cmp(path, made_path, shallow=False)


def _problem(url: str, text: str) -> Problem:
    advice = "readers use the document; save the spec again to make a new table"
    return Problem(urls.redact(url), f"{text}; {advice}")
