"""Read the bytes of a URL from any kind of server.

`schemes` finds the `Transport` of a URL by its scheme; there is one module for each kind, and
`stream` defines their interface: `by_http`, or else `open`. A transport asks once; `retry` repeats
failed attempts. What is read by HTTP is ranges of `range_loop`: the thread that waits for them
sends all requests, each when `admission` lets it, by `request_limit`. What is read otherwise is a
stream, and each stream has a thread. `urls` handles URLs as text, and rewrites them as the
environment says; `listing` expands patterns and folders.

To add a scheme such as ``mem://…``, write a module with a subclass of `Transport` and a function
``transport_for``, and add one line to the table in `schemes`; only object stores are known
elsewhere too (`urls.KINDS`). The ``//`` is necessary: ``mem:name`` is a path (SPEC-10).
"""
