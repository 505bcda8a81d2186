"""Turn a dataset into text, HTML and a page for a person.

The input is a dataset, by the protocol `ReadableDataset` of `shards.sample_access`. The output is
its facts, samples, fields and distributions, in a terminal, a notebook, or a browser. What is shown
is decided here; how bytes are fetched is not.

Read first: `preview` (what is read of a sample to be shown), `html` (how a value looks), and
`page.server` (the page in a browser).
"""
