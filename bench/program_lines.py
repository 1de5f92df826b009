"""Lines of code of the example programs, and of the same written with the openai SDK.

A line counts if it has code: blank lines, comments and docstrings do not. Of both versions the *program* is what remains without
imports, the command line (`main`), inputs (`inputs`) and the line that shows a result (`answer`). What the SDK's version
imports from ours (prompts, patterns, and what these are made with) is counted in neither, since it is the same text.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parent.parent / "examples" / "programs"
FRAME = {"main", "inputs", "answer"}
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True, slots=True)
class Lines:
    """Of one program."""

    ours: int
    sdk: int


def count(name: str) -> Lines:
    """Count both versions of program ``name``."""
    ours = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
    sdk = (PROGRAMS / "openai_sdk" / f"{name}.py").read_text(encoding="utf-8")
    shared = imported(ast.parse(sdk), f"examples.programs.{name}")
    return Lines(program(ours, shared), program(sdk))


def program(source: str, shared: Iterable[str] = ()) -> int:
    """Lines of code of the program in ``source``, without its frame, the top-level names ``shared`` and what these use."""
    body = ast.parse(source).body
    definitions = {name: node for node in body for name in _defined(node)}
    left_out, waiting = set(FRAME), list(shared)
    while waiting:
        name = waiting.pop()
        if name not in left_out and name in definitions:
            left_out.add(name)
            waiting += [part.id for part in ast.walk(definitions[name]) if isinstance(part, ast.Name)]
    lines = code_lines(source)
    for node in body:
        if _is_frame(node) or left_out.intersection(_defined(node)):
            lines -= _lines(node)
    return len(lines)


def imported(tree: ast.Module, module: str) -> set[str]:
    """The names that ``tree`` imports from ``module``."""
    return {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == module
        for alias in node.names
    }


def code_lines(source: str) -> set[int]:
    """Numbers of the lines that have code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node) is not None
        ):
            lines -= _lines(node.body[0])
    return lines


def _is_frame(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom) or (
        isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
    )


def _defined(node: ast.stmt) -> Iterator[str]:
    """The top-level names that a statement makes."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.Assign(targets=targets):
            for target in targets:
                yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))


def _lines(node: ast.stmt) -> set[int]:
    first = min((item.lineno for item in getattr(node, "decorator_list", [])), default=node.lineno)
    return set(range(first, (node.end_lineno or first) + 1))
