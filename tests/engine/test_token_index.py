from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.engine.token_index import TokenIndex
from tests.engine.text_vocabulary import TextVocabulary

VOCABULARY = TextVocabulary()
INDEX = TokenIndex(VOCABULARY)
TEXTS = [(token, text) for token, text in enumerate(VOCABULARY.texts) if text and token not in VOCABULARY.special]
PIECES = st.lists(st.sampled_from([b"a", b"b", b"ab", b"\xe2", b"\x82", b"\xac", b"!", b"\xff", b"c"]), max_size=6)


@given(PIECES.map(b"".join))
def test_it_finds_what_a_search_finds(prefix: bytes) -> None:
    assert INDEX.covering(prefix).tolist() == [token for token, text in TEXTS if text.startswith(prefix)]
    assert INDEX.standing_for(prefix) == [token for token, text in TEXTS if text == prefix]
    assert INDEX.extends(prefix) == any(text.startswith(prefix) and text != prefix for _, text in TEXTS)
    fitting = [text for _, text in TEXTS if prefix.startswith(text)]
    found = INDEX.longest_in(prefix)
    assert (None if found is None else VOCABULARY.texts[found]) == max(fitting, key=len, default=None)
    spelled = INDEX.spell(prefix)
    assert spelled is None or VOCABULARY.join(spelled) == prefix


def test_special_tokens_are_no_text() -> None:
    assert INDEX.covering(b"<").tolist() == [] and not INDEX.extends(b"<") and INDEX.special == VOCABULARY.special_ids
    assert INDEX.longest == 5 and 127 not in INDEX.covering(b"")


def test_of_several_tokens_of_one_text_the_first_spells_it() -> None:
    (own,) = VOCABULARY.ids("a")
    assert INDEX.longest_in(b"ac") == own and len(INDEX.covering(b"a")) == 1 + 31


@pytest.mark.parametrize("text", [b"!", b"\xac\xac", b"ac\xe2"])
def test_what_cannot_be_spelled(text: bytes) -> None:
    assert (INDEX.spell(text) is None) == (text != b"\xac\xac")
