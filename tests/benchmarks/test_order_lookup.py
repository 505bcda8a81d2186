"""Look-ups in the order can be measured, and are as fast as docs/samplers.md says."""

from __future__ import annotations

import order_lookup
import pytest

from wids import DistributedChunkedSampler


def test_every_look_up_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each sampler and size; what is sent is small, but for batches."""
    rows = order_lookup.main(["--toy", "--rounds", "1"])

    assert len(rows) == 2 * (len(order_lookup.KINDS) + 1)
    assert len(capsys.readouterr().out.splitlines()) == len(rows) + 1
    assert all(row.make_s > 0 < row.steps_of_s for row in rows.values())
    assert max(row.pickled_nbytes for (name, _), row in rows.items() if name != "batches") < 3000


@pytest.mark.alone
@pytest.mark.parametrize("name", order_lookup.KINDS)
def test_a_hundred_million_samples_are_asked_at_once(name: str) -> None:
    """0.3 s for the sequence and its first index, a second for the first sample's place."""
    sampler = order_lookup.KINDS[name](order_lookup.Data(100_000_000, 10_000))
    order_lookup.figures(DistributedChunkedSampler(range(100)), 0, 1)  # imports

    found = min((order_lookup.figures(sampler, epoch, 50) for epoch in range(3)), key=slowest)

    assert found.make_s < 0.3
    assert found.first_steps_of_s < 1
    assert max(found.random_s, found.next_s, found.steps_of_s) < 0.01
    assert found.pickled_nbytes < 3000


def slowest(found: order_lookup.Figures) -> float:
    return found.make_s + found.first_steps_of_s
