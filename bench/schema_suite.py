"""The JSON-Schema-Test-Suite through the grammar engine: how many schemas are exact, by keyword, with and without the rewriting.

    python -m bench.schema_suite [--out FILE.json]

What the verdicts mean is said in `tests/grammar/schema/suite.py`. "as served" is the rewriting with formats enforced, which the
suite's required part counts as wrong: there, a format is a note.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

from tests.grammar.schema.suite import DRAFTS, VERDICTS, Case, Judgement, judge, judge_engine_alone, load

WAYS: dict[str, Callable[[Case], Judgement]] = {
    "rewritten": judge,
    "as served": partial(judge, assert_formats=True),
    "engine alone": judge_engine_alone,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    totals = []
    keywords: dict[str, dict[str, dict[str, int]]] = {}
    for draft in DRAFTS:
        cases = load(draft)
        for way, verdict in WAYS.items():
            judged = [verdict(case) for case in cases]
            for part, chosen in (
                ("required", [one for one in judged if one.case.required]),
                ("optional", [one for one in judged if not one.case.required]),
            ):
                counts = Counter(one.verdict for one in chosen)
                row = {"draft": draft, "part": part, "way": way, "schemas": len(chosen)}
                totals.append({**row, **{name: counts[name] for name in VERDICTS}})
            if way == "rewritten":
                for one in judged:
                    count = keywords.setdefault(one.case.file, {}).setdefault(draft, dict.fromkeys(VERDICTS, 0))
                    count[one.verdict] += 1
    result = {
        "suite": "JSON-Schema-Test-Suite as in jsonschema 4.26.0",
        "engine": f"llguidance {version('llguidance')}",
        "totals": totals,
        "keywords": dict(sorted(keywords.items())),
    }
    for total in totals:
        print(json.dumps(total))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
