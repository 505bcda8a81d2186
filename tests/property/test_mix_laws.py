"""The laws of mixed epochs, tested on thousands of weights, sources and numbers of ranks."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import reference_order as reference
from hypothesis import strategies as st
from laws import REPEATS, law

from wids import MixedSampler, StateError
from wids.order import epoch_order, mixing
from wids.order.mixing import MAX_PERIOD, checked_weight, draws_per_period, pattern

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "specs" / "sampler-order.golden.json").read_text(encoding="utf-8")
)

pytestmark = REPEATS


class Data:
    """A dataset that has only sources."""

    def __init__(self, ranges: list[list[list[int]]]) -> None:
        self.sources = {f"s{number}": np.array(part) for number, part in enumerate(ranges)}
        stops = [stop for part in ranges for _, stop in part]
        self.lengths = [max(stops)]

    def __len__(self) -> int:
        return self.lengths[0]


@dataclass(frozen=True)
class Job:
    """A mix, with the sampler of each rank."""

    mix: reference.Mix

    def sampler(self, rank: int, num_replicas: int, **others: Any) -> MixedSampler:
        """Return the sampler of a rank, in the epoch of the mix."""
        mix = self.mix
        options: dict[str, Any] = {
            "num_samples": mix.num_samples,
            "chunksize": mix.chunksize,
            "shuffle": mix.shuffle,
            "seed": mix.seed,
            "num_canonical": mix.num_runs,
        }
        options |= {"rank": rank, "num_replicas": num_replicas, **others}
        made = MixedSampler(Data(mix.ranges), mix.weights, **options)
        made.set_epoch(mix.epoch)
        return made

    def ranks(self, num_replicas: int | None = None) -> list[list[int]]:
        """Return the indices of all ranks; by default there is one rank per run."""
        count = num_replicas or self.mix.num_runs
        return [list(self.sampler(rank, count)) for rank in range(count)]

    @property
    def end(self) -> int:
        """The index after the last source."""
        return max(stop for part in self.mix.ranges for _, stop in part)

    @property
    def numbers(self) -> list[int]:
        """The sources that ever have a weight, in the order in which they come (ORDER-29)."""
        phases = reference.phases(self.mix.weights)
        return list(dict.fromkeys(at for _, own in phases for at, w in enumerate(own) if w))

    @property
    def source_of(self) -> dict[int, int]:
        """The source of each index."""
        return {
            index: source
            for source, ranges in enumerate(self.mix.ranges)
            for start, stop in ranges
            for index in range(start, stop)
        }


def weights(most: int) -> st.SearchStrategy[list[int]]:
    """Lists of whole numbers without a common divisor."""
    return st.lists(st.integers(1, 12), min_size=1, max_size=most).map(
        lambda found: [weight // math.gcd(*found) for weight in found]
    )


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    stated = draw(weights(4))
    ranges: list[list[list[int]]] = [[] for _ in stated]
    at = 0
    # Ranges of the sources in turn, with gaps, so that most sources are in several places.
    for number in range(draw(st.integers(len(stated), 8))):
        at += draw(st.sampled_from([0, 0, 2]))
        length = draw(st.integers(0 if number >= len(stated) else 1, 9))
        ranges[number % len(stated)].append([at, at + length])
        at += length
    return Job(
        reference.Mix(
            ranges,
            stated,
            draw(st.integers(1, 40)),
            draw(st.sampled_from([1, 2, 3, 5, 2000])),
            draw(st.sampled_from([True, True, False])),
            draw(st.sampled_from([1, 2, 3, 4, 6])),
            draw(st.integers(0, 2**40)),
            draw(st.integers(0, 5)),
        )
    )


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


# What the order is


@law(15, 240, jobs(), st.data())
def test_mix_is_the_one_of_the_specification(job: Job, data: st.DataObject) -> None:
    """Each rank's order is that of a second implementation, written from the specification.

    ORDER-20, ORDER-21, ORDER-22, ORDER-23, ORDER-24, ORDER-25.
    """
    num_replicas = data.draw(st.sampled_from(divisors(job.mix.num_runs)))

    expected = [reference.mixed_rank(job.mix, rank, num_replicas) for rank in range(num_replicas)]

    assert job.ranks(num_replicas) == expected


@pytest.mark.parametrize("vector", GOLDEN["patterns"])
def test_golden_patterns(vector: dict[str, Any]) -> None:
    """Patterns and the draws where runs may start match (ORDER-12)."""
    found = pattern(tuple(vector["weights"]))

    assert found.draws(0, len(vector["pattern"])).tolist() == vector["pattern"]
    assert found.starts.tolist() == vector["starts"]


def golden_ranks(vector: dict[str, Any]) -> list[list[int]]:
    num_replicas, seed, epoch = (vector[name] for name in ("num_replicas", "seed", "epoch"))
    sources = tuple(mixing.Source("", np.array(ranges)) for ranges in vector["ranges"])
    length = -(-vector["num_samples"] // vector["num_runs"])
    phases = reference.phases(vector["weights"])
    schedule = tuple((start, tuple(weights)) for start, weights in phases)
    others = (vector[name] for name in ("chunksize", "shuffle", "num_runs"))
    made = mixing.Mix(np.empty(0, np.int64), sources, schedule, length, *others)
    return [
        [
            int(i)
            for block in epoch_order.rank_blocks(made, seed, epoch, r, num_replicas)
            for i in block
        ]
        for r in range(num_replicas)
    ]


@pytest.mark.parametrize("vector", GOLDEN["mixes"] + GOLDEN["schedules"])
def test_golden_mixes(vector: dict[str, Any]) -> None:
    """Each rank of a small mix matches, index by index (ORDER-12, ORDER-29)."""
    assert golden_ranks(vector) == vector["ranks"]
    names = {"num_replicas", "ranks", *asdict(reference.Mix([], [], 0, 1))}
    assert set(vector) == names, "a new setting has to be added to the vectors"


@pytest.mark.parametrize("vector", GOLDEN["mix_digests"])
def test_golden_mix_digests(vector: dict[str, Any]) -> None:
    """Each rank of a long mix matches by its digest (ORDER-12)."""
    digests = [
        hashlib.sha256(np.array(rank, "<i8").tobytes()).hexdigest() for rank in golden_ranks(vector)
    ]
    assert digests == vector["sha256"]


# Proportions


def deviations(sources: Any, draws: tuple[int, ...]) -> Any:
    """Return counts minus shares in units of 1 / period; shape ``(num_sources, num_draws + 1)``."""
    drawn = np.asarray(sources)
    each = [np.append(0, np.cumsum(drawn == source)) for source in range(len(draws))]
    at = np.arange(len(drawn) + 1)
    return np.stack(
        [counts * sum(draws) - at * own for counts, own in zip(each, draws, strict=True)]
    )


@law(
    150,
    2400,
    st.lists(st.one_of(st.integers(1, 9), st.integers(1, 99)), min_size=2, max_size=10),
    st.integers(1, 5),
)
def test_every_run_keeps_its_proportions(found: list[int], num_runs: int) -> None:
    """From every start, each count stays within 1 of its share, and two sources within 1 of it.

    ORDER-21: from the start of the pattern within 1 - 1 / (2k - 2). ORDER-22: a run of two sources
    may start anywhere.
    """
    draws = tuple(number // math.gcd(*found) for number in found)
    made, period, k = pattern(draws), sum(draws), len(draws)

    assert (2 * k - 2) * np.abs(deviations(made.draws(0, period), draws)).max() <= (
        (2 * k - 3) * period
    )
    for run in range(num_runs):
        start = made.start(run, num_runs)
        line = deviations(made.draws(start, start + 2 * period), draws)
        assert np.abs(line).max() < period
        spread = (line.max(axis=1) - line.min(axis=1)).max()  # of any number of consecutive draws
        assert spread < 2 * period
        if k == 2:
            assert spread <= period
            assert start == period * run // num_runs


@law(25, 400, jobs(), st.data())
def test_samples_keep_the_proportions(job: Job, data: st.DataObject) -> None:
    """The indices that a rank yields, over several epochs, are in the proportions of the weights.

    After t draws of a run within 1, in each batch within 2 for each run of the rank, at most 1 if
    there are two sources, and in an epoch within 2 for each run.
    """
    num_replicas = data.draw(st.sampled_from(divisors(job.mix.num_runs)))
    rank = data.draw(st.integers(0, num_replicas - 1))
    num_own = job.mix.num_runs // num_replicas
    sampler = job.sampler(rank, num_replicas)
    epochs = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    source_of, k = job.source_of, len(job.mix.weights)
    drawn = [source_of[index] for epoch in epochs for index in epoch]
    shares = [Fraction(weight, sum(job.mix.weights)) for weight in job.mix.weights]
    for run in range(num_own):
        own = drawn[run::num_own]
        for t in range(len(own) + 1):
            counts = Counter(own[:t])
            assert all(abs(counts[s] - t * share) < 1 for s, share in enumerate(shares))
    size = data.draw(st.integers(1, 12)) * num_own
    most = num_own * (1 if k == 2 else 2)
    for part in [*(drawn[i : i + size] for i in range(0, len(drawn), size)), *(epochs and [drawn])]:
        counts = Counter(part)
        assert all(abs(counts[s] - len(part) * share) <= most for s, share in enumerate(shares))


# Passes


@law(40, 600, st.one_of(jobs(), st.integers(0, 2**60).map(lambda seed: scheduled(Random(seed)))))
def test_sources_are_exhausted_before_they_repeat(job: Job) -> None:
    """At any step, samples of a source differ by at most 2 in how often they came; 1 on one run.

    With fewer samples than runs, the runs are in several passes at a time, and they differ by more;
    so they are where weights change, which brings runs further apart.
    ORDER-26, and ORDER-24: the runs together have every sample of a source once in each pass.
    """
    mix = job.mix
    num_phases = len(reference.phases(mix.weights))
    samplers = [job.sampler(rank, mix.num_runs) for rank in range(mix.num_runs)]
    counts = Counter(dict.fromkeys(job.source_of, 0))
    for epoch in range(6):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        for step in zip(*samplers, strict=True):
            counts.update(step)
            for ranges in mix.ranges:
                own = [counts[i] for start, stop in ranges for i in range(start, stop)]
                most = max(2, 1 + -(-mix.num_runs // len(own)))
                if num_phases > 1 and len(own) < (num_phases + 1) * mix.num_runs > 1:
                    continue
                assert max(own) - min(own) <= (1 if mix.num_runs == 1 else most)


@pytest.mark.parametrize("num_replicas", [1, 3, pytest.param(8, marks=pytest.mark.long)])
def test_sources_of_70_and_23_stay_together_for_ever(num_replicas: int) -> None:
    """After 30,000 draws, more than 300 passes, no sample came more than twice more than another.

    Every sample of a source is reached by several ranks, as slices move (ORDER-24).
    """
    data = Data([[[0, 70]], [[70, 93]]])
    ranks = [
        MixedSampler(data, [0.5, 0.5], num_replicas=num_replicas, rank=rank, num_samples=1000)
        for rank in range(num_replicas)
    ]
    counts = np.zeros(93, np.int64)
    for _ in range(30):
        counts += sum(np.bincount(list(rank), minlength=93) for rank in ranks)
        for own in (counts[:70], counts[70:]):
            assert np.ptp(own) <= (2 if num_replicas > 1 else 1)
    assert counts.sum() >= 30_000
    assert counts.min() > 200


@law(18, 300, st.integers(1, 60), st.integers(1, 12), st.integers(0, 200))
def test_passes_are_shared_without_rest(n: int, num_runs: int, number: int) -> None:
    """The slices of a pass are the source; from pass to pass each differs by at most a sample."""

    def shares(p: int) -> list[int]:
        return [((p + 1) * n + r) // num_runs - (p * n + r) // num_runs for r in range(num_runs)]

    source = mixing.Source("", np.array([[0, n]]))
    mix = mixing.Mix(
        np.array([n]), (source,), ((0, (1,)),), 1, 2000, shuffle=False, num_runs=num_runs
    )
    own = []
    for run in range(num_runs):
        made = mixing.MixedRun(mix, 0, 0, run)
        drawn = (number * n + run) // num_runs
        share = shares(number)[run]
        mine = list(made._shares(0, drawn, drawn + share)) if share else []
        own += [i for chunks, size, start, _ in mine for b in chunks.blocks(start, size) for i in b]
        assert sum(shares(p)[run] for p in range(number)) == drawn
    assert own == list(range(n))
    each, rest = divmod(n, num_runs)
    assert {each, each + (rest > 0)} >= set(shares(number))


# Schedules


def scheduled(draw: Random) -> Job:
    """Return a mix whose weights change, of sources that come in the order of the dataset."""
    num_phases, count = draw.randint(1, 4), draw.randint(1, 4)
    coming = sorted(draw.randrange(num_phases) for _ in range(count))
    coming[0] = 0
    phases, start = [], 0
    for phase in range(num_phases):
        own = [draw.choice([0, 1, 1, 2, 3, 5]) * (phase >= first) for first in coming]
        own = [max(w, phase == first) for w, first in zip(own, coming, strict=True)]
        own[0] += not any(own)
        phases.append([start, [weight // math.gcd(*own) for weight in own]])
        start += draw.choice([1, 2, draw.randint(1, 12), draw.randint(1, 60)])
    ranges: list[list[list[int]]] = [[] for _ in range(count)]
    at = 0
    for number in range(draw.randint(count, 7)):
        length = draw.randint(0 if number >= count else 1, 9)
        ranges[number % count].append([at, at + length])
        at += length + draw.choice([0, 0, 2])
    options = draw.choice([1, 2, 3, 2000]), draw.random() < 0.8, draw.choice([1, 2, 3, 4, 6])
    others = draw.getrandbits(40), draw.randint(0, 4)
    return Job(reference.Mix(ranges, phases, draw.randint(1, 30), *options, *others))


@law(100, 10_000, st.integers(0, 2**60))
def test_schedules_are_a_plain_walk(seed: int) -> None:
    """Each rank, each place and each way to a place is that of the second implementation.

    Within a phase each count of a run stays within 1 of its share; a source with enough samples has
    them all before any comes again; a state resumes anywhere (ORDER-26, ORDER-29, ORDER-67).
    """
    draw = Random(seed)
    job = scheduled(draw)
    mix, num_runs = job.mix, job.mix.num_runs
    count = draw.choice(divisors(num_runs))
    walks = [reference.mixed_rank(mix, rank, count) for rank in range(count)]
    samplers = [job.sampler(rank, count) for rank in range(count)]
    assert [list(sampler.ahead()) for sampler in samplers] == walks

    rank = draw.randrange(count)
    places = [draw.randrange(len(walks[rank])) for _ in range(3)]
    assert [samplers[rank].indices()[place] for place in places] == [
        walks[rank][place] for place in places
    ]
    index = draw.randrange(samplers[0].dataset_length)
    assert samplers[rank].steps_of(index) == [
        (other, place)
        for other, walk in enumerate(walks)
        for place, found in enumerate(walk)
        if found == index
    ]
    resumed = job.sampler(rank, count)
    resumed.load_state_dict(json.loads(json.dumps(samplers[rank].state_dict(places[0]))))
    assert list(resumed.ahead()) == walks[rank][places[0] :]

    length = -(-mix.num_samples // num_runs)
    run = draw.randrange(num_runs)
    drawn = reference.turns(mix, run, (mix.epoch + 1) * length)
    starts = [-(-start // num_runs) for start, _ in mix.weights]
    for (start, stop), (_, own) in zip(pairwise([*starts, len(drawn)]), mix.weights, strict=True):
        for t in range(start, min(stop, len(drawn)) + 1):
            for source, weight in enumerate(own):
                deviation = drawn[start:t].count(source) - Fraction((t - start) * weight, sum(own))
                assert abs(deviation) < 1


@law(100, 10_000, st.integers(0, 2**60))
def test_weights_change_after_the_fact(seed: int) -> None:
    """A state resumes with other weights after it, and every source where it was (ORDER-30).

    What was read and what follows are, for each source, the passes of one that never changed. Other
    weights before it are refused.
    """
    draw = Random(seed)
    job = scheduled(draw)
    mix = job.mix
    sampler = job.sampler(0, mix.num_runs)
    num_read = draw.randrange(len(sampler))
    state = json.loads(json.dumps(sampler.state_dict(num_read)))
    position = mix.epoch * sampler.total_size + num_read * mix.num_runs

    past = [phase for phase in mix.weights if not phase[0] or phase[0] < position]
    sources = [*mix.ranges, [[job.end, job.end + draw.randint(1, 9)]]]
    later = [*(draw.randint(0, 4) for _ in mix.ranges), draw.randint(1, 4)]
    widened = [[start, [*own, 0]] for start, own in past]
    start = max(position, 1) + draw.choice([0, 0, 1, 7])
    # Of sources that were to come, none has come: their numbers follow those that are there.
    other = Job(replace(mix, ranges=sources, weights=[*widened, [start, later]]))
    resumed = other.sampler(0, mix.num_runs)
    resumed.load_state_dict(state)
    rest = list(resumed)
    resumed.set_epoch(mix.epoch + 1)
    whole = [*islice(sampler, num_read), *rest, *resumed]
    before = mix.epoch * len(sampler)
    for source, ranges in enumerate(sources):
        own = [i for i in whole if any(a <= i < b for a, b in ranges)]
        if own and source in (there := other.numbers):
            first = reference.turns(mix, 0, before).count(source)
            numbered = replace(other.mix, ranges=[sources[number] for number in there])
            expected = reference.source_draws(numbered, there.index(source), 0, first + len(own))
            assert own == expected[first:]

    if position:
        wrong = [[0, [*mix.weights[0][1], 1]], *widened[1:], [start, later]]
        with pytest.raises(StateError, match=r"weights: expected .* until sample \d+"):
            Job(replace(other.mix, weights=wrong)).sampler(0, mix.num_runs).load_state_dict(state)


# Epochs, ranks, resuming


@law(37, 600, jobs(), st.data())
def test_ranks_are_equally_long(job: Job, data: st.DataObject) -> None:
    """Every rank has the rounded length, whatever the number of samples (ORDER-23)."""
    num_replicas = data.draw(st.sampled_from(divisors(job.mix.num_runs)))
    length = -(-job.mix.num_samples // job.mix.num_runs) * job.mix.num_runs // num_replicas

    assert [len(rank) for rank in job.ranks(num_replicas)] == [length] * num_replicas
    assert len(job.sampler(0, num_replicas)) == job.sampler(0, num_replicas).num_samples == length
    assert job.sampler(0, num_replicas).total_size == length * num_replicas


@law(10, 120, jobs(), st.data())
def test_mixed_sampler_resumes_at_every_position(job: Job, data: st.DataObject) -> None:
    """A state that went through JSON restores the rest of its epoch, at every position."""
    num_replicas = data.draw(st.sampled_from(divisors(job.mix.num_runs)))
    rank = data.draw(st.integers(0, num_replicas - 1))
    sampler = job.sampler(rank, num_replicas)
    whole = list(sampler)
    for position in range(len(whole)):
        list(islice(sampler, position))
        resumed = job.sampler(rank, num_replicas)
        resumed.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
        assert list(resumed) == whole[position:]


@law(12, 200, jobs(), st.data())
def test_mixed_state_resumes_on_other_numbers_of_ranks(job: Job, data: st.DataObject) -> None:
    """A state saved on R ranks after any round resumes on R': no sample is lost or repeated."""
    before, after = (data.draw(st.sampled_from(divisors(job.mix.num_runs))) for _ in "ba")
    width = job.mix.num_runs // before
    olds = [job.sampler(rank, before) for rank in range(before)]
    expected = sorted(index for sampler in olds for index in sampler)
    for round_ in range(-(-job.mix.num_samples // job.mix.num_runs)):
        done = [index for sampler in olds for index in islice(sampler, round_ * width)]
        states = [sampler.state_dict() for sampler in olds]
        assert all(state == states[0] for state in states)
        news = [job.sampler(rank, after) for rank in range(after)]
        for new in news:
            new.load_state_dict(states[0])
        assert sorted([*done, *(index for new in news for index in new)]) == expected


@law(25, 400, jobs(), st.integers(0, 2**40), st.integers(0, 30))
def test_far_epochs_are_computed_at_once(job: Job, epoch: int, position: int) -> None:
    """A position after 10**13 draws takes no longer than the first, and has the same laws."""
    sampler = job.sampler(0, job.mix.num_runs)
    sampler.set_epoch(epoch)
    whole = list(sampler)
    position %= len(whole)
    sampler.load_state_dict({**sampler.state_dict(0), "position": position * job.mix.num_runs})

    assert list(sampler) == whole[position:]
    shares = [Fraction(weight, sum(job.mix.weights)) for weight in job.mix.weights]
    counts = Counter(job.source_of[index] for index in whole)
    assert all(abs(counts[s] - len(whole) * share) < 2 for s, share in enumerate(shares))


def test_another_order_is_refused() -> None:
    """A state names all that the order depends on; the error shows what differs."""
    job = Job(reference.Mix([[[0, 9]], [[9, 12]]], [3, 1], 12, 5, num_runs=2))
    state = job.sampler(0, 2).state_dict()
    mixes = [
        replace(job.mix, weights=[2, 1]),
        replace(job.mix, ranges=[[[0, 8]], [[8, 12]]]),
        replace(job.mix, num_samples=14),
        replace(job.mix, chunksize=4),
        replace(job.mix, shuffle=False),
        replace(job.mix, seed=1),
    ]
    for mix in mixes:
        with pytest.raises(StateError, match=r"belongs to another order: .*expected .* found"):
            Job(mix).sampler(0, 2).load_state_dict(state)
    job.sampler(1, 2).load_state_dict(state)


# Weights


@law(62, 1000, st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9))
def test_float_weights_are_exact_or_rounded_to_a_millionth(found: list[float]) -> None:
    """Draws of the period are the weights; rounded to at most k / 2**20 if it is too long."""
    fractions = [checked_weight(weight, "w") for weight in found]
    draws = draws_per_period(fractions)
    total, period = sum(fractions), sum(draws)

    assert period <= MAX_PERIOD
    assert min(draws) >= 1
    if period == MAX_PERIOD:
        assert all(
            abs(Fraction(own, period) - weight / total) <= Fraction(len(found), MAX_PERIOD)
            for own, weight in zip(draws, fractions, strict=True)
        )
    else:
        assert [Fraction(own, period) for own in draws] == [f / total for f in fractions]
    assert all(float(fraction) == weight for fraction, weight in zip(fractions, found, strict=True))


def test_decimals_are_meant_as_they_are_written() -> None:
    """0.1 is a tenth, 1 / 3 a third, and numbers of any scale are proportions (ORDER-20)."""

    def draws(*found: Any) -> tuple[int, ...]:
        return draws_per_period([checked_weight(weight, "w") for weight in found])

    assert draws(0.7, 0.2, 0.1) == (7, 2, 1)
    assert draws(1 / 3, 2 / 3) == (1, 2)
    assert draws(0.333333, 0.666667) == (333_333, 666_667)
    assert draws(np.float64(0.65), Fraction(7, 20)) == (13, 7)
    assert draws(np.int64(40), 10, 30.0) == (4, 1, 3)
    assert draws(1_281_167, 118_287, 5_000_000)[2] == round(5_000_000 / 6_399_454 * 2**20)
    assert draws(1, 1e12) == (1, 2**20 - 1)
    assert sum(draws(math.pi, math.e, 1)) == 2**20


def test_longest_period_keeps_the_laws() -> None:
    """Weights that have no short period are tabulated over 2**20 draws, and are as exact."""
    draws = draws_per_period([checked_weight(w, "w") for w in (math.pi, math.e, 1, 0.01, 1e-5)])
    made = pattern(draws)

    assert np.abs(deviations(made.draws(0, 2**20), draws)).max() <= 2**20 * 7 / 8
    start = made.start(5, 7)
    assert start > 0
    assert np.abs(deviations(made.draws(start, start + 2**20), draws)).max() < 2**20
    billions = 10**12 + 12345
    counts = [made.count(source, billions) for source in range(5)]
    assert sum(counts) == billions
    for own, count in zip(draws, counts, strict=True):
        assert abs(count - Fraction(billions * own, 2**20)) < 1
