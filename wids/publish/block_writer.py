"""Close a writer at the end of its ``with`` block, or drop what it wrote after an exception."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class BlockWriter:
    """A context manager that publishes what was written, or leaves nothing behind."""

    def __init__(self) -> None:
        self._is_open = True

    def close(self) -> None:
        """Finish and publish what was written; a second call does nothing."""
        if not self._is_open:
            return
        try:
            self._is_open = False
            self._publish()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def _publish(self) -> None:
        """Finish and publish what was written."""
        raise NotImplementedError

    def _drop(self, *failure: Any) -> None:
        """Clean up after an exception; called a second time, it does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is None:
            self.close()
            return
        self._is_open = False
        self._drop(*failure)
