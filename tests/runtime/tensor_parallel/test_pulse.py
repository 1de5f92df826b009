"""Counters that ranks show each other."""

from __future__ import annotations

from radixserve.runtime.tensor_parallel.pulse import LONGEST_BEAT_S, Pulses, beat_interval, pulse_memory


def test_what_one_maps_another_sees() -> None:
    with pulse_memory(3) as memory:
        here, there = Pulses(memory, 3), Pulses(memory, 3)
    assert (here.beats(1), here.moves(), here.sums()) == (0, 0, [0, 0, 0])
    one, two = there.of(1), there.of(2)
    one.beat()
    one.beat()
    one.move()
    two.begin_sum()
    here.of(0).move()
    assert [here.beats(rank) for rank in range(3)] == [0, 2, 0]
    assert there.moves() == 3 and here.sums() == [0, 0, 1]


def test_a_rank_beats_several_times_before_it_is_given_up() -> None:
    assert beat_interval(300.0) == LONGEST_BEAT_S
    assert beat_interval(2.0) == 0.2
