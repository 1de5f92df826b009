"""Histograms with fixed edges, in the form that a metrics endpoint needs."""

from __future__ import annotations

from radixserve.engine.step_stats import Histogram, StepStats


def test_counts_are_cumulative_and_edges_belong_to_their_bucket() -> None:
    histogram = Histogram((1, 2, 4))
    for value in (0.5, 1, 1.5, 4, 5):
        histogram.observe(value)
    assert histogram.report() == {"edges": [1, 2, 4], "counts": [2, 3, 4, 5], "sum": 12.0}


def test_steps_are_added_up_and_the_last_is_told() -> None:
    stats = StepStats()
    assert stats.report()["count"] == 0 and stats.report()["last_rows"] == 0
    stats.observe(1.0, 1.25, 3, 100)
    stats.observe(2.0, 2.5, 2, 2)
    report = stats.report()
    assert (report["count"], report["seconds"]) == (2, 0.75)
    assert (report["last_seconds"], report["last_rows"], report["last_tokens"]) == (0.5, 2, 2)
    for name, total in (("step_seconds", 0.75), ("batch_rows", 5), ("batch_tokens", 102)):
        assert report[name]["sum"] == total and report[name]["counts"][-1] == 2


def test_no_time_counts_twice_where_steps_overlap() -> None:
    stats = StepStats()
    for began, end in ((1.0, 2.0), (1.5, 2.75), (4.0, 5.0)):
        stats.observe(began, end, 1, 1)
    assert stats.report()["seconds"] == 1.0 + 0.75 + 1.0
