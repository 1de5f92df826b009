"""The JSON-Schema-Test-Suite, judged through the grammar engine.

Of each schema one thing is said. *exact*: all its valid instances are accepted and no invalid one. *refused*: by name, before any grammar.
*unsatisfiable*: refused because no document satisfies it, and the suite has no valid instance for it either. *engine*: rewritten,
but the engine does not compile it. *rejects*: some valid instance has no accepted spelling. *accepts*: some
invalid instance has one.

``format`` constrains in ``optional/format`` (the suite has these for validators that assert it) and is a note elsewhere, as drafts say by
default; with ``assert_formats`` it constrains everywhere, as it does in the server.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from radixserve.grammar.schema.dialect import Draft
from radixserve.grammar.schema.normalizer import normalize_schema
from radixserve.grammar.schema.refusal import UNSATISFIABLE, SchemaRefused
from tests.grammar.schema.acceptance import EngineRefused, accepts, compile_schema

DRAFTS = {"draft2020-12": Draft.DRAFT_2020, "draft7": Draft.DRAFT_7}
VERDICTS = ("exact", "unsatisfiable", "refused", "engine", "rejects", "accepts")


@dataclass(frozen=True, slots=True)
class Case:
    """A schema of the suite; ``file`` is the keyword it is about. ``instances``: description, value, valid."""

    draft: Draft
    file: str
    description: str
    schema: object
    instances: tuple[tuple[str, object, bool], ...]

    @property
    def required(self) -> bool:
        """Not in the suite's optional part."""
        return not self.file.startswith("optional/")


@dataclass(frozen=True, slots=True)
class Judgement:
    """``verdict`` is one of `VERDICTS`; ``why``: the refusal, or the instance that was judged wrongly."""

    case: Case
    verdict: str
    why: str = ""


def load(draft: str) -> list[Case]:
    """All cases of ``draft``."""
    lines = json.loads((Path(__file__).parent / "data" / f"{draft}.json").read_text())
    return [Case(DRAFTS[draft], file, text, schema, tuple(map(tuple, tests))) for file, text, schema, tests in lines]


def judge(case: Case, *, assert_formats: bool = False) -> Judgement:
    """The verdict with the rewriting."""
    formats = assert_formats or case.file.startswith("optional/format")
    try:
        schema = normalize_schema(case.schema, draft=case.draft, assert_formats=formats)
    except SchemaRefused as error:
        nothing = error.code == UNSATISFIABLE and not any(valid for _, _, valid in case.instances)
        return Judgement(case, "unsatisfiable" if nothing else "refused", str(error))
    return _through_engine(case, lambda: schema)


def judge_engine_alone(case: Case) -> Judgement:
    """The verdict without it."""
    return _through_engine(case, lambda: case.schema)


def _through_engine(case: Case, schema: Callable[[], object]) -> Judgement:
    try:
        matcher = compile_schema(schema())
    except EngineRefused as error:
        return Judgement(case, "engine", str(error))
    rejected = ""
    for text, value, valid in case.instances:
        if accepts(matcher, value) != valid:
            if not valid:
                return Judgement(case, "accepts", text)
            rejected = rejected or text
    return Judgement(case, "rejects", rejected) if rejected else Judgement(case, "exact")
