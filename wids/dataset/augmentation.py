"""Augment samples at random, in a way that can be repeated.

The random generator of an augmentation is derived from a seed, the epoch and the sample's index, so
that neither the number of workers nor a resumed epoch changes what a sample becomes.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from wids.storage.shared_numbers import SharedNumber


class Augmentation:
    """A transformation that passes a sample and its generator to a function.

    Args:
        function: Takes a sample and a ``numpy.random.Generator``, and returns a sample.
        seed: The seed, at least 0.
        epoch: The epoch of the dataset.
    """

    def __init__(self, function: Callable[[Any, Any], Any], seed: int, epoch: SharedNumber) -> None:
        try:
            signature(function).bind(None, None)
        except TypeError:
            raise TypeError(
                f"map(seed={seed}): expected a function of two arguments, a sample and a "
                f"numpy.random.Generator, found {_name(function)}{signature(function)}; take the "
                "generator, f(sample, rng), or leave seed out"
            ) from None
        except ValueError:  # some functions in C do not state theirs
            pass
        self.function = function
        from wids.order.arguments import at_least  # not for reading: decision 0057

        self.seed = at_least(0, seed, "seed")
        self._epoch = epoch

    def __call__(self, sample: Any) -> Any:
        """Return what the function returns for the sample.

        Raises:
            TypeError: An earlier transformation returned something without an index.
        """
        from numpy.random import default_rng

        try:
            index = sample["__index__"]
        except (TypeError, KeyError, IndexError):
            raise TypeError(
                "map(seed=…): expected a sample with __index__, found "
                f"{type(sample).__name__} {sample!r:.80}; put this map before the one that removes "
                "it, or before to_tuple"
            ) from None
        return self.function(sample, default_rng((self.seed, self._epoch.value, index)))

    def __repr__(self) -> str:
        return f"Augmentation({_name(self.function)}, seed={self.seed})"


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", repr(function)))
