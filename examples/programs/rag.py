"""A RAG pipeline of two hops, as one writes it in DSPy: search, read, search again, read, answer with reasons.

Its two modules, the writer of queries and the writer of answers, each have instructions and worked examples that all their calls share.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.programs.command import run
from examples.programs.dataset import rows
from examples.programs.encyclopedia import Article, articles, search
from radixlang import ProgramState, function, gen

HOPS, PASSAGES = 2, 2
QUERY = (
    "Given what has been found so far, write a query of a few words that finds in an encyclopedia of the Velden Isles what is "
    "still needed to answer the question.\n\n"
)
ANSWER = (
    "Answer the question from the passages alone. First give the reasoning that leads from the passages to the answer, then the "
    "answer in a few words.\n\n"
)
BY_TITLE = {article.title: article for article in articles()}


def show(found: Sequence[Article], question: str) -> str:
    """Passages and question, as both modules read them."""
    passages = "\n".join(f"[{number}] {article.title}: {article.text}" for number, article in enumerate(found, 1))
    return f"Passages:\n{passages or 'none'}\nQuestion: {question}\n"


def demonstrate() -> tuple[str, str]:
    """Instructions and worked examples of the two modules."""
    query, answer = QUERY, ANSWER
    for row in rows("rag_examples"):
        first, second = ([BY_TITLE[title] for title in row[key]] for key in ("first", "second"))
        query += show(first, row["question"]) + f"Query: {row['query']}\n\n"
        answer += show(first + second, row["question"])
        answer += f"Reasoning: {row['reasoning']}\nAnswer: {row['answer']}\n\n"
    return query, answer


QUERY_MODULE, ANSWER_MODULE = demonstrate()


@function
async def program(s: ProgramState, question: str) -> None:
    """Find passages in two hops, then answer."""
    found: list[Article] = []
    for _ in range(HOPS):
        (writer,) = s.fork(1)
        writer += QUERY_MODULE + show(found, question) + "Query:" + gen("query", max_tokens=16, stop="\n")
        query = await writer.get("query")
        found += search(query, PASSAGES, besides=found)
    s += ANSWER_MODULE + show(found, question) + "Reasoning:" + gen("reasoning", max_tokens=64, stop="\n")
    s += "\nAnswer:" + gen("answer", max_tokens=16, stop="\n")


def inputs(count: int = 8, path: Path | None = None) -> list[dict[str, Any]]:
    """Questions that take two articles to answer. ``path``: a file of ``question``."""
    return [{"question": row["question"]} for row in rows("questions", path)[:count]]


def answer(s: ProgramState) -> str:
    """What a run brought, in a line."""
    return str(s["answer"]).strip()


def main() -> None:
    """Run it on the embedded model and print results and report."""
    run(program, inputs, answer, __doc__)


if __name__ == "__main__":
    main()
