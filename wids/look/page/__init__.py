"""Serve a dataset as a page to a browser of this machine.

The modules here use a dataset only by the protocol `ReadableDataset`, and leave to `wids.look` how
a sample looks. docs/looking.md introduces the page.
"""
