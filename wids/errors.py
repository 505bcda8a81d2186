"""The errors of wids, and nothing else.

::

    WidsError
    ├── SpecError           (ValueError)         the JSON document, or the `shards` argument
    ├── ShardFormatError    (ValueError)         bytes that are not the tar they claim to be
    ├── MismatchError       (ValueError)         a shard that is not what its spec says
    ├── FetchError          (OSError)            a URL that could not be read
    │   └── NotFoundError   (FileNotFoundError)  a URL where nothing is
    ├── StateError          (ValueError)         a sampler's state that is not its own
    └── SampleError         (ValueError)         one sample; names shard, key, field and index
        ├── DecodeError                          a field that is not what its extension says
        └── TransformError                       a callable of the user's that raised

Every class is the natural built-in as well, and can be built from one string: that is how torch
rebuilds an exception that a DataLoader worker raised, so the type survives the way home.
"""

from __future__ import annotations

import os


class WidsError(Exception):
    """Any error that wids raises on purpose."""


class SpecError(WidsError, ValueError):
    """A JSON spec, or another form of ``shards``, that cannot be understood or trusted."""


class ShardFormatError(WidsError, ValueError):
    """Bytes that are not the complete, plain tar that a shard has to be."""


class MismatchError(WidsError, ValueError):
    """A shard that differs from what its spec says about it."""


class FetchError(WidsError, OSError):
    """A URL or path that could not be read."""


class NotFoundError(FetchError, FileNotFoundError):
    """A URL or path where there is nothing."""


class StateError(WidsError, ValueError):
    """A saved state of a sampler that cannot be restored into this one."""


class SampleError(WidsError, ValueError):
    """A single sample that could not be produced.

    Attributes:
        shard: URL of the shard, or None where it is not known.
        key: Key of the sample, or None.
        field: Field with its leading dot, or None where the error is not about one field.
        index: Index in the full dataset, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        shard: str | None = None,
        key: str | None = None,
        field: str | None = None,
        index: int | None = None,
    ) -> None:
        super().__init__(message)
        self.shard = shard
        self.key = key
        self.field = field
        self.index = index


class DecodeError(SampleError):
    """A field whose bytes are not what its extension says."""


class TransformError(SampleError):
    """A transformation of the caller's that raised; the original error is its ``__cause__``."""


def local_error(path: str, error: OSError) -> FetchError:
    """Return the error for a local path that could not be opened."""
    if isinstance(error, FileNotFoundError):
        return NotFoundError(
            f"{path}: no such file (seen from {os.getcwd()}); check the path, or `base`"
        )
    found = "a folder" if os.path.isdir(path) else error.strerror or error
    return FetchError(f"{path}: expected a readable file, found: {found}")
