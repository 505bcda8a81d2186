"""What the tests of transport share: a file of five megabytes, and a fetch into memory."""

from __future__ import annotations

import io
import random

from wids.transport.download import Expected
from wids.transport.fetch import Fetcher

DATA = random.Random(1).randbytes(5_000_000)


def saved(url: str, expected: Expected | None = None, **arguments: object) -> bytes:
    """Return what `Fetcher.save` writes; the arguments are those of `Fetcher`."""
    file = io.BytesIO()
    Fetcher(**arguments).save(url, file, expected or Expected())
    return file.getvalue()
