"""Token-exact history: what this server generated keeps the tokens it was generated with.

A model may write a text in other tokens than encoding gives, and a text's tokens may differ once more text stands before
or behind it. A client sends text back, so without a memory the next turn would diverge from the cached KV somewhere
inside the answer. Here the tokens are remembered under the whole prompt that they continued, and put in where a
new prompt holds the same prompt and the same answer. Whatever is put in, the text that the ids stand for stays the rendered text.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sortedcontainers import SortedDict

from radixserve.model.tokenizer import Tokenizer

_TAIL = 32
_SAMPLES = 16


@dataclass(frozen=True, slots=True)
class _Answer:
    """``ids`` stand for ``text``; ``rest`` is text behind it that ends inside a token and must be encoded.

    ``prompt_digest``: of the ids before.
    """

    prompt_digest: bytes
    ids: array[int]
    text: str
    rest: str


@dataclass(slots=True)
class _Place:
    """The answers to one prompt text, the newest last; where it ends and with which characters."""

    salt: bytes
    length: int
    tail: str
    answers: list[_Answer]


class GeneratedHistory:
    """The latest answers of all namespaces, at most ``max_tokens`` tokens of them. Safe to share between threads.

    Only a prompt of the same ``salt`` finds an answer.
    """

    def __init__(self, tokenizer: Tokenizer, *, max_tokens: int = 1 << 20, max_prompts: int = 4096) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._max_prompts = max_prompts
        self._tokens = 0
        self._places: OrderedDict[bytes, _Place] = OrderedDict()
        # Where remembered prompts end, by salt: length -> last characters -> prompts.
        self._ends: dict[bytes, SortedDict[int, Counter[str]]] = {}
        self._lock = threading.Lock()
        first = tokenizer.encode("a")
        # Whether a text can be encoded in two pieces: it cannot where encoding puts a space before each.
        self._joins = b"".join(map(tokenizer.token_bytes, first)) == b"a"

    def __len__(self) -> int:
        """Tokens that are remembered."""
        return self._tokens

    def remember(
        self, salt: bytes, prompt_text: str, prompt_ids: Sequence[int], output_ids: Sequence[int], output_text: str
    ) -> None:
        """``output_ids`` were generated behind ``prompt_ids`` and gave ``output_text``.

        An end token, what follows a stop string, and special tokens that the text leaves out are not part of it.
        """
        ids, text = self._aligned(output_ids, output_text)
        if not ids or len(ids) > self._max_tokens:
            return
        answer = _Answer(_digest(prompt_ids), array("i", ids), text, output_text[len(text) :])
        key = hashlib.blake2b(prompt_text.encode(), key=_salt_key(salt)).digest()
        with self._lock:
            place = self._places.get(key)
            if place is None:
                place = self._places[key] = _Place(salt, len(prompt_text), prompt_text[-_TAIL:], [])
                self._ends.setdefault(salt, SortedDict()).setdefault(place.length, Counter())[place.tail] += 1
            self._places.move_to_end(key)
            if answer not in place.answers:
                place.answers.append(answer)
                self._tokens += len(ids)
            if len(place.answers) > _SAMPLES:
                self._tokens -= len(place.answers.pop(0).ids)
            while self._tokens > self._max_tokens or len(self._places) > self._max_prompts:
                self._forget_oldest()

    def encode(
        self, salt: bytes, text: str, data: Collection[int] = (), answers: Collection[str] = ()
    ) -> tuple[list[int], int]:
        """The ids of a rendered conversation, and how many of them are remembered ones.

        ``data`` as in `Tokenizer.encode_with_data`. A remembered answer must be whole: behind it the text ends, or a special
        token stands, or it is one of ``answers`` (contents of the conversation's messages).
        """
        ids: list[int] = []
        done = reused = hashed = 0
        hasher = hashlib.blake2b(key=_salt_key(salt))
        for length in self._candidates(salt, text):
            if length < done:
                continue
            hasher.update(text[hashed:length].encode())
            hashed = length
            found = self._find(hasher.digest())
            if not found:
                continue
            before = ids + self._piece(text, done, length, data)
            digest = _digest(before)
            fitting = [
                answer
                for answer in found
                if answer.prompt_digest == digest and self._fits(answer, text, length, data, answers)
            ]
            if fitting:
                # Of several, the longest; of several ways to write it, the newest.
                best = max(reversed(fitting), key=lambda answer: len(answer.text) + len(answer.rest))
                ids, done = [*before, *best.ids], length + len(best.text)
                reused += len(best.ids)
        return ids + self._piece(text, done, len(text), data), reused

    def _candidates(self, salt: bytes, text: str) -> list[int]:
        """Where in ``text`` a remembered prompt may end, ascending."""
        with self._lock:
            ends = self._ends.get(salt)
            if ends is None:
                return []
            return [
                length
                for length in ends.irange(maximum=len(text))
                if text[max(0, length - _TAIL) : length] in ends[length]
            ]

    def _find(self, key: bytes) -> list[_Answer]:
        with self._lock:
            place = self._places.get(key)
            if place is None:
                return []
            self._places.move_to_end(key)
            return list(place.answers)

    def _fits(self, answer: _Answer, text: str, start: int, data: Collection[int], answers: Collection[str]) -> bool:
        whole = answer.text + answer.rest
        if not text.startswith(whole, start):
            return False
        end, seam = start + len(whole), start + len(answer.text)
        if end < len(text) and not self._token_at(text, end, data) and whole not in answers:
            return False
        return self._joins or seam == len(text) or self._token_at(text, seam, data)

    def _token_at(self, text: str, position: int, data: Collection[int]) -> bool:
        name = self._tokenizer.special_name_at(text, position)
        return name is not None and not any(index in data for index in range(position, position + len(name)))

    def _piece(self, text: str, start: int, end: int, data: Collection[int]) -> list[int]:
        inside = frozenset(index - start for index in data if start <= index < end)
        return self._tokenizer.encode_with_data(text[start:end], inside) if start < end else []

    def _aligned(self, ids: Sequence[int], text: str) -> tuple[list[int], str]:
        """The longest beginning of ``ids`` that stands for a beginning of ``text``, and that beginning."""
        target = text.encode()
        size = end = count = 0
        for index, token in enumerate(ids):
            piece = self._tokenizer.token_bytes(token)
            if token in self._tokenizer.special_ids and index == len(ids) - 1:
                break
            if not target.startswith(piece, size):
                break
            size += len(piece)
            # Inside a character nothing can be cut.
            if size == len(target) or target[size] & 0xC0 != 0x80:
                count, end = index + 1, size
        return list(ids[:count]), target[:end].decode()

    def _forget_oldest(self) -> None:
        _, place = self._places.popitem(last=False)
        self._tokens -= sum(len(answer.ids) for answer in place.answers)
        ends = self._ends[place.salt]
        tails = ends[place.length]
        tails[place.tail] -= 1
        if not tails[place.tail]:
            del tails[place.tail]
        if not tails:
            del ends[place.length]
        if not ends:
            del self._ends[place.salt]


def _digest(ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(array("i", ids).tobytes(), digest_size=32).digest()


def _salt_key(salt: bytes) -> bytes:
    return hashlib.blake2b(salt, digest_size=32).digest()
