"""Find the samples of a dataset or view that a search of the page of `wids browse` shows."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import numpy as np

from wids.look.page.page_columns import PageColumns
from wids.look.page.questions import Selection
from wids.look.page.search import Hits, Scan, parse_conditions
from wids.shards.positions import Positions, as_int_array
from wids.shards.sample_access import ReadableDataset

if TYPE_CHECKING:
    from wids.storage.arrays import IntArray

_logger = logging.getLogger(__name__)


def found_in(
    dataset: ReadableDataset, positions: Positions, query: dict[str, str], seed: int | None
) -> IntArray:
    """Return the places in ``positions`` of the samples that satisfy conditions.

    Args:
        dataset: All samples.
        positions: Those of a view.
        query: The conditions, as a page sends them.
        seed: As for `Selection`.
    """
    conditions = parse_conditions(query, dataset.spec.classes)
    wanted = as_int_array(positions)
    if conditions:
        within = np.zeros(len(dataset), bool)
        within[wanted] = True
        hits = Hits(conditions, PageColumns(dataset), within, sys.maxsize)
        left_out = +Scan(dataset, hits).complete()
        if left_out:
            counts = ", ".join(f"{n:,} {kind.replace('_', ' ')}" for kind, n in left_out.items())
            _logger.warning("%r: fields that a search left out: %s", dataset, counts)
        places = np.flatnonzero(np.isin(wanted, np.asarray(hits.found)))
    else:
        places = np.arange(len(wanted))
    if seed is None:
        return places
    chosen = Selection(places.tolist(), len(wanted), seed)
    return np.array(chosen.page(0, len(chosen)), np.int64)
