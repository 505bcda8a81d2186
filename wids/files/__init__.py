"""Files that appear complete or not at all, locks, progress bars, digests, and sizes as text.

Nothing here knows what is in a file. Imports only `wids.errors`.
"""
