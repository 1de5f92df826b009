"""Sampling defaults and end tokens of ``generation_config.json``."""

from __future__ import annotations

from typing import Any

import pytest

from radixserve.errors import ModelLoadError
from radixserve.model.generation_config import GenerationDefaults, parse_generation_config


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {}),
        ({"do_sample": False, "temperature": 0.7}, {"temperature": 0.0}),
        ({"do_sample": True, "temperature": 0.7, "top_p": 0.8}, {"temperature": 0.7, "top_p": 0.8}),
        ({"temperature": 1, "top_k": 0, "min_p": 0.05}, {"temperature": 1.0, "top_k": 0, "min_p": 0.05}),
        ({"do_sample": None, "temperature": None}, {}),
        ({"repetition_penalty": 1.1, "max_new_tokens": 9}, {"repetition_penalty": 1.1, "max_tokens": 9}),
        ({"eos_token_id": 3}, {"eos_ids": (3, 7)}),
        ({"eos_token_id": [5, 7, 5]}, {"eos_ids": (5, 7)}),
    ],
)
def test_fields(values: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parse_generation_config(values, "file", [7, 7]) == GenerationDefaults(**{"eos_ids": (7,), **expected})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": "hot"}, "temperature must be a finite number"),
        ({"temperature": -0.1}, "temperature must be between 0 and 100"),
        ({"temperature": float("inf")}, "temperature must be a finite number"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1"),
        ({"top_p": 1.1}, "top_p must be above 0 and at most 1"),
        ({"top_k": -1}, "top_k must be an integer of at least 0"),
        ({"top_k": 2.5}, "top_k must be an integer"),
        ({"min_p": 2}, "min_p must be between 0 and 1"),
        ({"repetition_penalty": 0}, "repetition_penalty must be above 0"),
        ({"max_new_tokens": 0}, "max_new_tokens must be an integer of at least 1"),
        ({"do_sample": "no"}, "do_sample must be true or false"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token id or a list"),
        ({"eos_token_id": [1, -1]}, "eos_token_id must be a token id or a list"),
        ({"eos_token_id": True}, "eos_token_id must be a token id or a list"),
    ],
)
def test_fields_that_make_no_sense_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=f"file: {message}"):
        parse_generation_config(values, "file")
