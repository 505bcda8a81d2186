"""The bytes of a field ↔ its value: one table of codecs, the decoder and the encoder that use it.

Nothing here knows where a field is stored.
"""
