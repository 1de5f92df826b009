"""The JSON-Schema-Test-Suite through the grammar engine. What the verdicts mean is said in `suite`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.grammar.schema.suite import DRAFTS, Judgement, judge, judge_engine_alone, load

# Schemas of the required part that are exact, of how many: 368 and 254 in the suite as it is here.
EXACT = {"draft2020-12": 310, "draft7": 218}


@pytest.fixture(scope="module", params=DRAFTS)
def judgements(request: pytest.FixtureRequest) -> list[Judgement]:
    return [judge(case) for case in load(request.param)]


def _named(judgements: list[Judgement], verdict: str) -> list[str]:
    return [f"{one.case.file}: {one.why}" for one in judgements if one.verdict == verdict]


def test_no_invalid_instance_is_accepted(judgements: list[Judgement]) -> None:
    assert _named(judgements, "accepts") == []


def test_the_engine_compiles_all_that_is_not_refused(judgements: list[Judgement]) -> None:
    assert _named(judgements, "engine") == []


def test_only_leap_seconds_of_other_offsets_are_rejected(judgements: list[Judgement]) -> None:
    assert _named(judgements, "rejects") == [
        "optional/format/date-time: a valid date-time with a leap second, with minus offset",
        "optional/format/time: valid leap second, positive time-offset",
    ]


def test_enough_is_exact(judgements: list[Judgement]) -> None:
    draft = next(name for name, value in DRAFTS.items() if value is judgements[0].case.draft)
    count = Counter(one.verdict for one in judgements if one.case.required)
    assert count["exact"] >= EXACT[draft]


def test_every_refusal_names_a_keyword_and_where_it_stands(judgements: list[Judgement]) -> None:
    for one in judgements:
        if one.verdict == "refused":
            assert one.why.startswith("schema: "), one
            assert " at #" in one.why, one


def test_the_harness_sees_what_the_engine_alone_does_wrong() -> None:
    verdicts = Counter(judge_engine_alone(case).verdict for case in load("draft2020-12"))
    assert verdicts["accepts"] > 0
    assert verdicts["rejects"] > 0
    assert verdicts["engine"] > 100


def test_with_asserted_formats_only_the_tests_that_say_they_are_notes_change() -> None:
    for case in load("draft2020-12"):
        if case.file != "format":
            continue
        assert judge(case).verdict == "exact"
        assert judge(case, assert_formats=True).verdict in ("rejects", "refused")
