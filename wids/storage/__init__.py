"""Turn a URL into its bytes: complete, verified, and cached on this machine.

The input is a URL, with what a spec states of the file (its length and digests). The result is a
document, ranges of bytes, a local copy that all processes share, or a file published at the URL. A
file under its final name is complete. No module here parses a tar.

Read first: `fetch` (every read of a URL begins there), `transport.schemes` (which transport reads
which scheme), and `cache.store` (how a copy is found or fetched).
"""
