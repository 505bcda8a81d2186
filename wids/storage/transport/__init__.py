"""Read the bytes of a URL from any kind of server.

`schemes` finds the `Transport` of a URL by its scheme; there is one module for each kind, and all
have the interface that `stream` defines. A transport asks once; `retry` repeats failed attempts.
What is read by HTTP is ranges of `range_loop`: one thread sends all requests, each when `admission`
lets it, by `request_limit`. What is read otherwise is a stream, and each stream has a thread.
`urls` handles URLs as text, and rewrites them as the environment says; `listing` expands patterns
and folders.

To add a scheme such as ``mem://…``, write a module with a subclass of `Transport` and a function
``transport_for``, and add one line to the table in `schemes`; no other module knows which schemes
exist. The ``//`` is necessary: ``mem:name`` is a path (SPEC-10).
"""
