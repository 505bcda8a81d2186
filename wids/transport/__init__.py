"""A URL → its bytes: URLs as strings, a module for each kind of transport, retries, resumption.

Nothing here knows tars or caches.
"""
