"""Read the bytes of a URL from any kind of server.

`wids.storage.fetch` is the entrance: a `Fetcher` reads documents, downloads files, and returns a
reader of parts of a file. Below it, `wids.storage.download` resumes after a cut and `retry` repeats
failed attempts; `gate` lets each request wait for its turn, as `request_limit` decides; `schemes`
has the table of schemes, with one transport module for each kind (`connections`, `connections`
and `http` are parts of `http`); `listing` expands patterns and folders; `urls`
applies the environment's rules; `urls` treats URLs as text.

To add a scheme such as ``mem://…``, write one module with a function ``transport_for`` and add one
line to the table in `schemes`; no other module knows which schemes exist. The ``//`` is necessary:
``mem:name`` is a path (SPEC-10).
"""
