"""`ConstrainedOutput` without a model: random draws, settled and followed as the engine does it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from radixserve import SamplingParams
from radixserve.constraints import JsonSchema
from radixserve.engine.constrained import constrained_output
from radixserve.grammar.compiler import ConstraintCompiler
from radixserve.messages import FinishReason, SampleOutput
from radixserve.model.loader import LoadedModel
from tests.grammar.corpus.corpus import Entry, Generated, load

# Recursive, with texts of every kind, and with long ways to the end.
NAMES = ("answer_ui_tree", "github_push_event", "invoice", "tool_query_table")


@pytest.fixture(scope="module")
def compiler(smollm2: LoadedModel) -> ConstraintCompiler:
    return ConstraintCompiler(smollm2.tokenizer, smollm2.generation.eos_ids, seconds=60)


def problems(
    compiler: ConstraintCompiler,
    model: LoadedModel,
    entry: Entry,
    max_tokens: int,
    draw: Callable[[npt.NDArray[np.intp]], int],
) -> list[str]:
    """What is wrong with the output of which ``draw`` chooses the tokens."""
    ends = frozenset(model.generation.eos_ids)
    constraint = JsonSchema(entry.text)
    output = constrained_output(
        compiler.compile(constraint),
        SamplingParams(constraint=constraint, max_tokens=max_tokens, finish_json=True),
        end_tokens=ends,
        special_ids=model.tokenizer.special_ids,
        max_tokens=max_tokens,
    )
    mask = np.zeros(-(-model.tokenizer.vocab_size // 32), np.uint32)
    follow = output.begin()
    tokens = list(follow.tokens)
    while follow.ending is None:
        output.fill_mask(mask)
        choice = output.choice(mask, model.tokenizer.vocab_size)
        assert choice.error is None and choice.settle is not None
        token = choice.settle(draw(choice.allowed))
        tokens.append(token)
        if token in ends:
            break
        follow = output.after(token)
        tokens += follow.tokens
    assert len(tokens) <= max_tokens
    text = model.tokenizer.decode([token for token in tokens if token not in ends])
    sample = SampleOutput(index=0, text=text, finish_reason=FinishReason.STOP)
    return [f"{problem}: {text}" for problem in Generated(entry, sample, max_tokens).problems()]


@pytest.mark.parametrize("entry", [entry for entry in load() if entry.name in NAMES], ids=lambda entry: entry.name)
def test_whatever_is_drawn_ends_in_time_and_validates(
    compiler: ConstraintCompiler, smollm2: LoadedModel, entry: Entry
) -> None:
    short = [token for token, text in enumerate(smollm2.tokenizer.all_token_bytes()) if 0 < len(text) < 4]
    for seed in range(2):
        dice = random.Random(seed)

        def draw(allowed: npt.NDArray[np.intp], dice: random.Random = dice) -> int:
            some = np.intersect1d(allowed, short) if dice.random() < 0.7 else allowed
            return int(dice.choice(some if len(some) else allowed))

        assert problems(compiler, smollm2, entry, 220, draw) == []


@pytest.mark.parametrize("max_tokens", range(40, 80))
def test_a_way_is_kept_when_what_is_forced_is_spelt_in_other_tokens(
    compiler: ConstraintCompiler, smollm2: LoadedModel, max_tokens: int
) -> None:
    # Once a label is full, its quote and all that follows up to the bracket are forced, and written with fewer tokens than
    # by a way that was found while another letter could still come.
    schema = {
        "type": "object",
        "properties": {
            "label": {"type": "string", "maxLength": 3},
            "children": {"type": "array", "items": {"$ref": "#"}},
        },
        "required": ["label", "children"],
        "additionalProperties": False,
    }
    entry = Entry("tree", json.dumps(schema), schema)
    letter, opening = (smollm2.tokenizer.encode_continuation(text)[0] for text in ("x", "{"))

    def draw(allowed: npt.NDArray[np.intp]) -> int:
        return next((token for token in (letter, opening) if token in allowed), int(allowed[0]))

    assert problems(compiler, smollm2, entry, max_tokens, draw) == []
