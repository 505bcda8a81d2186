"""Parse a Range header into the bytes of a body that it requests (RFC 9110, section 14)."""

from __future__ import annotations

import re
from typing import Final

# Up to 18 digits, so that a hostile header cannot make the conversion to int slow.
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


def requested_span(header: str, nbytes: int) -> range | None:
    """Return the bytes that a header requests of a body of some length.

    Returns:
        The bytes; an empty range if the body has none of them (status 416); None for all of the
        body, because nothing is requested, or several ranges, or the header is invalid.
    """
    # RFC 9110 lets a server ignore a Range header. So several ranges, which need a multipart body,
    # and invalid headers get all of the body.
    found = _RANGE.fullmatch(header)
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:  # so many bytes at the end
        return range(max(nbytes - int(found[2]), 0), nbytes)
    first, last = int(found[1]), int(found[2] or nbytes)
    # RFC 9110, section 14.1.1: such a range is invalid, which differs from one that the body does
    # not have. Section 14.2 lets a server ignore it.
    if found[2] and last < first:
        return None
    return range(first, min(last + 1, nbytes))
