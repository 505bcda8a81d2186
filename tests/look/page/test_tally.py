"""Counts of values, from columns of a table and from samples."""

from __future__ import annotations

from conftest import optional

from wids.look.page.tally import Tally
from wids.tables.conditions import label_of


def test_lists_in_a_saved_column_are_counted() -> None:
    """As a scan counts them: by their labels, over all chunks."""
    pa = optional("pyarrow")
    column = pa.chunked_array([[[1, 2], None, [1, 2]], [[3], []]])
    tally = Tally()
    tally.add_column(column)
    assert tally._counts == {label_of([1, 2]): 2, label_of([3]): 1, label_of([]): 1}
    assert (tally._num_values, tally._num_nulls) == (4, 1)
