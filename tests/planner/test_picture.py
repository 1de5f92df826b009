from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from radixserve.planner.model import PlanModel
from radixserve.planner.options import PlanOptions
from radixserve.planner.plan import Plan
from radixserve.planner.planning import plan_log
from radixserve.planner.prompt_tree import build_trees, passing, path_to
from radixserve.planner.replay import Prompt

HOSTILE = "</title><script>alert('x')</script> & \"quoted\" \x1b[31mred\x07 "
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def plan(tmp_path: Path, tiny_text: PlanModel) -> Plan:
    path = tmp_path / "a <log> & more.jsonl"
    lines = [
        {"prompt": HOSTILE * 2 + f"end {number}", "max_tokens": 3, "cache_salt": f"s{number % 2}"}
        for number in range(4)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return plan_log(path, model=tiny_text, options=PlanOptions(pools=(12,), concurrency=1))


def test_the_tree_counts_what_passes_each_edge() -> None:
    prompts = [
        Prompt((1, 2, 3, 4), ((9, 9),)),
        Prompt((1, 2, 5)),
        Prompt((1, 2, 3, 4, 9, 7)),
        Prompt((1, 2), salt=b"other"),
    ]
    trees = build_trees(prompts)
    root = trees[b"common"]
    edges = {(tuple(node.tokens), node.start): (node.sent, node.drawn) for node, _ in root.walk() if node.length}
    # The output's first token is in a later prompt as well; its second one is not.
    assert edges == {
        ((1, 2), 0): (3, 0),
        ((3, 4), 2): (2, 0),
        ((5,), 2): (1, 0),
        ((9,), 4): (1, 1),
        ((9,), 5): (0, 1),
        ((7,), 5): (1, 0),
    }
    assert [node.tokens for node in path_to(root, (1, 2, 3, 4))] == [[1, 2], [3, 4]]
    assert passing(trees, prompts)[trees[b"other"]] == [3]


def test_the_picture_is_well_formed_and_hides_no_markup(plan: Plan) -> None:
    picture = plan.svg()
    root = ET.fromstring(picture)
    assert root.tag == f"{SVG}svg"
    assert not list(root.iter(f"{SVG}script"))
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert any("<script>alert('x')</script> & \"quoted\"" in title for title in titles)
    assert not any(re.search(r"[\x00-\x09\x0b-\x1f]", title) for title in titles)


def test_widths_are_tokens(plan: Plan) -> None:
    """Bars of the first row are the namespaces' prompts; together they are as wide as all there is to compute."""
    root = ET.fromstring(plan.svg())
    bars = [group.find(f"{SVG}rect") for group in root.iter(f"{SVG}g")]
    first = min(float(bar.attrib["y"]) for bar in bars if bar is not None)
    widths = [float(bar.attrib["width"]) for bar in bars if bar is not None and float(bar.attrib["y"]) == first]
    assert len(widths) == 2
    assert sum(widths) == pytest.approx(1160, abs=2)
    assert widths[0] == pytest.approx(widths[1], abs=1)


def test_the_page_is_one_file_that_loads_nothing(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    plan.save_html(path)
    page = path.read_text()
    assert "<script" not in page.replace("&lt;script", "")
    assert not re.search(r"(src|href)=", page)
    assert "a &lt;log&gt; &amp; more.jsonl" in page
    assert page.count("<svg") == 1
    assert f"{plan.tokens.sent:,}" in page


def test_the_table_prints_no_control_characters(plan: Plan) -> None:
    text = str(plan)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert "tokens sent" in text
    assert "Other pools" in text


def test_the_json_has_all_the_numbers(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan.save_json(path)
    found = json.loads(path.read_text())
    assert found["tokens"]["sent"] == plan.tokens.sent
    assert found["blocks"]["kept"] == plan.blocks.kept
    assert [advice["saves"] for advice in found["advice"]] == [advice.saves for advice in plan.advice]
    assert found["share_of_best"] == pytest.approx(plan.tokens.share_of_best)
    assert found["pools"][0]["blocks"] == 12
    assert {"trace", "trees", "decode"}.isdisjoint(found)
