"""What a cache without end has left to compute, against a set of all prefixes."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from radixlang.optimum import Optimum, TokenTrie
from radixlang.token_keys import common_tokens, token_key, tokens_of

# Ids that differ in one byte only, whichever it is.
TOKENS = st.sampled_from([1, 2, 1 << 8, 1 << 16, 1 << 24])
SEQUENCES = st.lists(TOKENS, max_size=8)


class NaiveCache:
    """The definition, word by word."""

    def __init__(self) -> None:
        self.known: set[tuple[int, ...]] = set()

    def generate(self, prompt: Sequence[int], outputs: Sequence[Sequence[int]]) -> int:
        needed = self._add(prompt)
        for output in outputs:
            self._add([*prompt, *output[:-1]])
        return max(needed, 1)

    def score(self, prompt: Sequence[int], continuations: Sequence[Sequence[int]]) -> int:
        return max(sum(self._add([*prompt, *tokens[:-1]]) for tokens in continuations), 1)

    def _add(self, tokens: Sequence[int]) -> int:
        prefixes = {tuple(tokens[: end + 1]) for end in range(len(tokens))}
        new = len(prefixes - self.known)
        self.known |= prefixes
        return new


def generate(cache: Optimum, prompt: Sequence[int], *outputs: Sequence[int]) -> int:
    return cache.generate(token_key(prompt), [token_key(output) for output in outputs])


@given(SEQUENCES, SEQUENCES)
def test_keys_compare_as_the_tokens_do(first: list[int], second: list[int]) -> None:
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    assert common_tokens(token_key(first), token_key(second)) == shared
    assert tokens_of(token_key(first)) == first


@given(st.lists(SEQUENCES, max_size=12))
def test_the_trie_knows_every_prefix(sequences: list[list[int]]) -> None:
    trie = TokenTrie()
    known: set[tuple[int, ...]] = {()}
    for tokens in sequences:
        longest = max(end for end in range(len(tokens) + 1) if tuple(tokens[:end]) in known)
        assert trie.insert(token_key(tokens)) == longest
        known |= {tuple(tokens[:end]) for end in range(len(tokens) + 1)}
        assert len(trie) == len(known) - 1


@given(st.lists(st.tuples(st.booleans(), SEQUENCES, st.lists(SEQUENCES.filter(bool), max_size=3)), max_size=10))
def test_the_optimum_is_what_its_definition_says(calls: list[tuple[bool, list[int], list[list[int]]]]) -> None:
    optimum, naive = Optimum(), NaiveCache()
    for scored, prompt, outputs in calls:
        keys = [token_key(output) for output in outputs]
        if scored:
            assert optimum.score(token_key(prompt), keys) == naive.score(prompt, outputs)
        else:
            assert optimum.generate(token_key(prompt), keys) == naive.generate(prompt, outputs)


def test_siblings_need_the_edges_of_their_tree() -> None:
    shared = list(range(100))
    optimum = Optimum()
    assert [generate(optimum, [*shared, 200 + branch, 7]) for branch in range(4)] == [102, 2, 2, 2]


def test_a_next_turn_needs_the_last_generated_token_and_what_is_new() -> None:
    optimum = Optimum()
    assert generate(optimum, [1, 2, 3], [4, 5, 6]) == 3
    assert generate(optimum, [1, 2, 3, 4, 5, 6, 7, 8], [9]) == 3


def test_every_sample_of_a_call_is_known_afterwards() -> None:
    optimum = Optimum()
    assert generate(optimum, [1, 2], [5, 5, 5], [6, 6, 6]) == 2
    assert generate(optimum, [1, 2, 5, 5, 8]) == 1
    assert generate(optimum, [1, 2, 6, 6, 8]) == 1


def test_a_prompt_that_is_known_whole_still_needs_its_last_token() -> None:
    optimum = Optimum()
    assert [generate(optimum, [1, 2, 3]) for _ in range(3)] == [3, 1, 1]


def test_a_choice_needs_its_prompt_and_the_inner_tokens_of_its_continuations() -> None:
    optimum = Optimum()
    assert optimum.score(token_key([1, 2, 3]), [token_key(tokens) for tokens in ([4], [4, 5, 6], [4, 7])]) == 5
    # The chosen [4, 5, 6] enters the state, its last token still unknown.
    assert generate(optimum, [1, 2, 3, 4, 5, 6, 9]) == 2
    assert optimum.score(token_key([1, 2, 3]), [token_key([4]), token_key([8])]) == 1
