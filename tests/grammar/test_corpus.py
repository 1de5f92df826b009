"""The schemas that people have: all are compiled or refused by name, and what is generated under them validates."""

from __future__ import annotations

import json

import pytest

from radixserve import Engine
from radixserve.constraints import JsonSchema
from radixserve.grammar.closing import LONGEST_CLOSING
from radixserve.grammar.compiler import ConstraintCompiler
from radixserve.grammar.schema.refusal import SchemaRefused
from radixserve.model.loader import LoadedModel
from tests.grammar.corpus.corpus import REFUSED, Entry, exact, generate, load
from tests.grammar.vocabularies import byte_compiler

CORPUS = load()
SERVED = [entry for entry in CORPUS if entry.name not in REFUSED]
LEAST_FINISHED = 200


def named(entry: Entry) -> str:
    return entry.name


def test_there_are_a_hundred_and_each_is_a_schema() -> None:
    assert len(CORPUS) == 100 and len({json.dumps(entry.schema, sort_keys=True) for entry in CORPUS}) == 100
    for entry in CORPUS:
        type(entry.validator).check_schema(entry.schema)


def test_all_are_compiled_or_refused_by_keyword_and_path() -> None:
    compiler = byte_compiler()
    refused: dict[str, tuple[str, str]] = {}
    for entry in CORPUS:
        try:
            compiler.compile(JsonSchema(entry.text))
        except SchemaRefused as error:
            refused[entry.name] = (error.origin.keyword, error.origin.path)
    assert refused == REFUSED


@pytest.fixture(scope="module")
def compiler(smollm2: LoadedModel) -> ConstraintCompiler:
    return ConstraintCompiler(smollm2.tokenizer, smollm2.generation.eos_ids, seconds=60)


@pytest.mark.parametrize("entry", SERVED, ids=named)
def test_the_way_to_an_end_is_a_valid_document(
    compiler: ConstraintCompiler, smollm2: LoadedModel, entry: Entry
) -> None:
    way = compiler.compile(JsonSchema(entry.text)).first_way(LONGEST_CLOSING)
    document = exact(smollm2.tokenizer.decode(way))
    assert [error.message for error in entry.validator.iter_errors(document)] == [], document


@pytest.mark.long
@pytest.mark.parametrize("finish_json", [False, True])
def test_every_finished_document_of_the_real_model_validates(smollm2: LoadedModel, finish_json: bool) -> None:
    with Engine.from_model(smollm2, kv_memory_mb=512) as engine:
        documents = generate(engine, SERVED, samples=5, max_tokens=400, seed=7, finish_json=finish_json)
        engine.check()
    assert len(documents) == 5 * len(SERVED)
    for document in documents:
        assert document.problems() == [], f"{document.entry.name}: {document.sample.text}"
    finished = sum(document.finished for document in documents)
    # Without a reserve some are cut by length, which proves little; too few left would prove nothing.
    assert finished == len(documents) if finish_json else finished >= LEAST_FINISHED, finished
