"""How the lines of the programs are counted."""

from __future__ import annotations

import ast

import pytest

from bench import program_lines
from examples.programs import NAMES

SOURCE = '''"""What it is."""

from __future__ import annotations

import a  # why

TEXT = (
    "one"
    "two"
)
OTHER = TEXT + "three"


@decorated
def program(s: int) -> int:
    """Do it.

    At length.
    """
    # A comment.
    s += 1

    return call(
        s,
    )


def helper() -> str:
    return OTHER


def inputs() -> list[int]:
    return []


if __name__ == "__main__":
    main()
'''


def test_code_lines_are_neither_blank_nor_comments_nor_docstrings() -> None:
    source = '"""Doc."""\n\n# note\nx = 1  # note\n\n\ndef f() -> None:\n    """Doc.\n\n    More."""\n\n    return (\n        x\n    )\n'
    assert program_lines.code_lines(source) == {4, 7, 12, 13, 14}


def test_a_text_of_several_lines_counts_whole() -> None:
    assert program_lines.code_lines('x = """a\n\n# b\n"""\n') == {1, 2, 3, 4}


def test_the_frame_is_left_out() -> None:
    # TEXT 4, OTHER 1, program 6 with its decorator, helper 2.
    assert program_lines.program(SOURCE) == 13


@pytest.mark.parametrize(("shared", "lines"), [(["TEXT"], 9), (["OTHER"], 8), (["helper"], 6)])
def test_what_is_shared_is_left_out_with_all_that_it_uses(shared: list[str], lines: int) -> None:
    assert program_lines.program(SOURCE, shared) == lines


def test_imported_names() -> None:
    tree = ast.parse("from a.b import c, d\nfrom a import e\n")
    assert program_lines.imported(tree, "a.b") == {"c", "d"}


@pytest.mark.parametrize("name", NAMES)
def test_the_language_is_shorter(name: str) -> None:
    lines = program_lines.count(name)
    assert 0 < lines.ours < lines.sdk
