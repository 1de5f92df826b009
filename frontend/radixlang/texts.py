"""Pieces of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from radixlang.backends.base import Text

# What stands around messages in the text of a state whose backend does not tell its template.
PLAIN_MARKS = ("{role}: ", "\n")


def merged(pieces: Iterable[Text]) -> tuple[Text, ...]:
    """The same text in as few pieces as there are changes of kind, so that its tokens do not depend on how it was written."""
    whole: list[Text] = []
    for piece in pieces:
        if whole and whole[-1].kind == piece.kind:
            whole[-1] = Text(whole[-1].text + piece.text, piece.kind)
        else:
            whole.append(piece)
    return tuple(whole)


def content_of(pieces: Sequence[Text]) -> str:
    """The text of ``pieces`` without what a template wrote."""
    return "".join(piece.text for piece in pieces if piece.kind != "template")
