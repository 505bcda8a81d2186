"""Turn the small fields of all samples into columns, search them, and join other data to samples.

The input is a dataset's reader and the positions of a view. The output is Arrow tables, the samples
that satisfy conditions, and the reader of a dataset that is joined with another or with rows.

Read first: `table` (columns of a view), `joins` (what can be joined, and how), and `joined` (how
joined samples are read).
"""
