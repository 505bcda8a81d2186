"""Files that appear whole, locks on them, progress bars, and sizes as text.

Nothing here knows what is in a file. Imports only `wids.errors`.
"""
