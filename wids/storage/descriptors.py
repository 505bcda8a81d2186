"""Divide the files and connections that a process may have open among those that open many."""

from __future__ import annotations


def num_descriptors(divisor: int, most: int) -> int:
    """Return how many descriptors one purpose may use.

    Args:
        divisor: What the number of those that the process may have is divided by.
        most: The largest number to return; the least is 1.
    """
    try:
        import resource
    except ImportError:  # Windows, which has no such limit for files opened this way
        return most
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft < 0 else max(1, min(most, soft // divisor))
