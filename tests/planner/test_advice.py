from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from radixserve.planner.advice.elsewhere import came_together, same_in_namespaces, tokenized_anew
from radixserve.planner.advice.evidence import Evidence
from radixserve.planner.advice.order import shuffled
from radixserve.planner.advice.parting import varying_first
from radixserve.planner.advice.runs import common_run
from radixserve.planner.advice.spelling import spelled_apart
from radixserve.planner.model import PlanModel
from radixserve.planner.plan import Advice
from radixserve.planner.replay import Prompt, computed_tokens, tokens_to_compute

SHOTS = [
    f"Question: what is {number} plus {number}?\nAnswer: {number} and {number} make {2 * number}, as everybody knows.\n\n"
    for number in range(12)
]
RULES = "You answer questions of arithmetic, in one line, and you say nothing about anything else.\n"

Find = Callable[[Evidence], Iterator[Advice]]
ALL: tuple[Find, ...] = (varying_first, shuffled, spelled_apart, same_in_namespaces, tokenized_anew)


class Texts:
    """Prompts from texts, with the embedded model's tokenizer."""

    def __init__(self, model: PlanModel) -> None:
        self.tokenizer = model.text.tokenizer

    def prompt(self, text: str, **more: bytes) -> Prompt:
        return Prompt(tuple(self.tokenizer.encode(text)), **more)  # type: ignore[arg-type]

    def evidence(self, texts: Sequence[str]) -> Evidence:
        return Evidence([self.prompt(text) for text in texts], self.tokenizer, 16)

    def length(self, text: str) -> int:
        return len(self.tokenizer.encode(text))


@pytest.fixture
def texts(smollm2_text: PlanModel) -> Texts:
    return Texts(smollm2_text)


def question(number: int) -> str:
    return f"Question: what is {number} plus 3?\nAnswer:"


def test_the_tree_computes_each_token_once(texts: Texts) -> None:
    head, first, second = texts.prompt(RULES), texts.prompt(RULES + "One"), texts.prompt(RULES + "Two")
    assert computed_tokens([head, first, second, second], 16) == [
        len(head.tokens),
        len(first.tokens) - len(head.tokens),
        len(second.tokens) - len(head.tokens),
        1,
    ]


def test_outputs_are_kept_without_their_last_token(texts: Texts) -> None:
    first = Prompt((1, 2, 3), ((4, 5, 6),))
    assert tokens_to_compute([first, Prompt((1, 2, 3, 4, 5, 6, 7))], 16) == 3 + 2


def test_good_prompts_get_no_advice(texts: Texts) -> None:
    evidence = texts.evidence([RULES + "".join(SHOTS) + question(number) for number in range(8)])
    assert [advice for find in ALL for advice in find(evidence)] == []
    assert list(came_together(evidence, computed_tokens(evidence.prompts, 16))) == []


def test_a_date_above_the_examples(texts: Texts) -> None:
    """Seven of eight prompts save the block of examples: the number is what the tree says of the changed prompts."""
    days = [f"Today is 2026-11-{day}.\n" for day in range(10, 18)]
    prompts = [RULES + day + "".join(SHOTS) + question(number) for number, day in enumerate(days)]
    evidence = texts.evidence(prompts)
    (advice,) = varying_first(evidence)
    block = texts.length("".join(SHOTS))
    assert advice.kind == "varying_first"
    assert advice.text.startswith(f"moving the date line “{days[0].strip()}” below the ")
    assert advice.calls == 8
    assert abs(advice.saves - 7 * block) <= 7 * 2
    moved = texts.evidence([RULES + "".join(SHOTS) + day + question(number) for number, day in enumerate(days)])
    assert abs(advice.saves - (evidence.base - moved.base)) <= 8 * 4


def test_two_places_save_what_both_say(texts: Texts) -> None:
    """A second move is judged with the first one made, so the numbers add up."""
    second = "".join(
        f"Fact {number}: number {number} is followed by number {number + 1} in the row.\n" for number in range(9)
    )
    prompts = [
        RULES + f"Request 00{number}77.\n" + "".join(SHOTS) + f"User {number}{number}9.\n" + second + question(number)
        for number in range(5)
    ]
    evidence = texts.evidence(prompts)
    found = list(varying_first(evidence))
    assert len(found) >= 2
    everything = evidence.base - sum(advice.saves for advice in found)
    best = tokens_to_compute(
        [
            texts.prompt(RULES + "".join(SHOTS) + second + f"Request 00{n}77.\nUser {n}{n}9.\n" + question(n))
            for n in range(5)
        ],
        16,
    )
    assert abs(everything - best) <= 40


def test_what_varies_is_not_moved_across_messages(texts: Texts) -> None:
    prompts = [
        f"<|im_start|>user\nMy name is {name}.<|im_end|>\n<|im_start|>assistant\n" + "".join(SHOTS)
        for name in ("Ann", "Bert", "Cleo")
    ]
    assert list(varying_first(texts.evidence(prompts))) == []


def test_examples_in_another_order(texts: Texts) -> None:
    orders = [SHOTS[:], SHOTS[::-1], [*SHOTS[6:], *SHOTS[:6]], [*SHOTS[3:], *SHOTS[:3]]]
    prompts = [RULES + "\n" + "".join(order) + question(number) for number, order in enumerate(orders)]
    (advice,) = shuffled(texts.evidence(prompts))
    assert (advice.kind, advice.calls) == ("order", 3)
    block = texts.length("".join(SHOTS))
    assert 3 * block - 60 <= advice.saves <= 3 * block + 12


def test_white_space_and_case(texts: Texts) -> None:
    spellings = [RULES, RULES.replace(", ", ",  "), RULES.upper(), RULES]
    prompts = [spelled + "".join(SHOTS) + question(number) for number, spelled in enumerate(spellings)]
    evidence = texts.evidence(prompts)
    (advice,) = spelled_apart(evidence)
    assert (advice.kind, advice.calls) == ("spelling", 2)
    same = texts.evidence([RULES + "".join(SHOTS) + question(number) for number in range(4)])
    assert advice.saves == evidence.base - same.base


def test_one_system_prompt_in_many_namespaces(texts: Texts) -> None:
    text = RULES + "".join(SHOTS)
    prompts = [replace(texts.prompt(text + question(number)), salt=bytes([number])) for number in range(1, 6)]
    (advice,) = same_in_namespaces(Evidence(prompts, texts.tokenizer, 16))
    assert advice.kind == "namespaces"
    assert "are the same in 5 namespaces" in advice.text
    assert abs(advice.saves - 4 * texts.length(text)) <= 4 * 8


def test_an_output_that_comes_back_in_other_tokens(texts: Texts) -> None:
    """It was generated letter by letter, and is sent back as the text that it is."""
    asked = texts.prompt(RULES + question(1))
    answer = " It is four hundred and twelve, which everybody knows, and so should you, my dear and patient reader."
    letters = tuple(texts.tokenizer.encode(letter)[0] for letter in answer)
    follow = texts.prompt(RULES + question(1) + answer + "\n" + question(2))
    prompts = [replace(asked, outputs=(letters,)), follow]
    (advice,) = tokenized_anew(Evidence(prompts, texts.tokenizer, 16))
    assert (advice.kind, advice.calls) == ("tokenized_anew", 1)
    kept = [asked.tokens, letters, texts.tokenizer.encode("\n" + question(2))]
    changed = Prompt(tuple(token for part in kept for token in part))
    assert abs(advice.saves - (tokens_to_compute(prompts, 16) - tokens_to_compute([prompts[0], changed], 16))) <= 3


def test_outputs_that_keep_their_tokens_need_no_advice(texts: Texts) -> None:
    asked = texts.prompt(RULES + question(1))
    answer = tuple(texts.tokenizer.encode(" It is four."))
    follow = Prompt((*asked.tokens, *answer, *texts.tokenizer.encode("\n" + question(2))))
    assert list(tokenized_anew(Evidence([replace(asked, outputs=(answer,)), follow], texts.tokenizer, 16))) == []


def test_short_prompts_that_come_together(texts: Texts) -> None:
    prompt = texts.prompt("Say a word.")
    evidence = Evidence([prompt] * 40, texts.tokenizer, 16)
    computed = [len(prompt.tokens)] * 40
    (advice,) = came_together(evidence, computed)
    assert f"{39:,} prompts, 39 of them shorter than a block of 16" in advice.text
    assert advice.saves == 39 * (len(prompt.tokens) - 1)


def test_the_run_is_the_one_that_most_branches_have() -> None:
    long, wide = list(range(100, 180)), list(range(200, 240))
    branches = [
        [(0, [1, *long, *wide])],
        [(1, [2, 2, *wide, *long])],
        [(2, [3, 3, 3, *wide])],
        [(3, [4, *wide, 4])],
    ]
    run = common_run(branches)
    assert run is not None
    # 3 times 40 is more than once 80.
    assert run.tokens == tuple(wide)
    assert run.places == {0: 81, 1: 2, 2: 3, 3: 1}


def test_sequences_without_a_long_run_have_none() -> None:
    assert common_run([[(0, list(range(40)))], [(1, list(range(100, 140)))]]) is None
    assert common_run([[(0, list(range(31)))], [(1, [7, *range(31)])]]) is None
