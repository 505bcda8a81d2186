"""Turn the small fields of all samples into columns, keys, searches and joins.

In go a dataset's reader and the positions of a view. Out come Arrow tables, the sequence of keys,
the samples that satisfy conditions, and the reader of a dataset that is joined with another or with
rows.

Read first: `table` (columns of a view), `keys`, and `joins` (what can be joined, and how).
"""
