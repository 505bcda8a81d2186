"""A URL → its bytes, from any kind of server: complete, retried, and resumed after a cut.

`fetch` is the entrance: a `Fetcher` reads documents, downloads files, and returns a reader of parts
of a file (`range_reader`). Below it, `download` and `retry` cope with failures; `schemes` has the
table of schemes, one transport module for each kind of them (`connections` is a part of `http`);
`rewrite` applies the environment's rules; `urls` treats URLs as text.

To add a scheme such as ``mem://…``, write one module with a function ``transport_for`` and add one
line to the table in `schemes`; no other module knows which schemes exist. The ``//`` is necessary:
``mem:name`` is a path (SPEC-10).

This package knows neither specs nor tars nor caches.
"""
