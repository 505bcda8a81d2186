"""The bytes of a field ↔ its value: one table of codecs, and the decoder and encoder that use it.

Nothing here knows where a field is stored.
"""
