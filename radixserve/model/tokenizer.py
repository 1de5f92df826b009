"""Text to token ids and back.

Encoding is the ``tokenizers`` library's. Decoding is ours: every token stands for fixed bytes, so a text is the
concatenation of its tokens' bytes, whatever pieces it is streamed in.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import tokenizers

from radixserve.errors import InvalidRequest
from radixserve.model.token_bytes import Alphabet, token_to_bytes

# Characters from which on the library is asked in the way that lets other threads run.
_LONG = 16_384

# White space, digits, punctuation, letters and what is none of them, next to each other and at both ends.
_PROBES = (
    " \t a  b\r\n\n c \u00a0\u3000\u2028 ",
    '1 23,4.5-x_y\'ll "q" (z)!?;:#/\\ aA\u00e9\u65e5\u672c\U0001f389\x00\x7f',
    "\n",
    " ",
)
# No merge of a text vocabulary takes this control character in.
_FOREIGN = "\x02"


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The roles that tokens have in a model.

    ``bos_id``, ``pad_id``, ``unk_id``: None where the model has none. ``eos_ids``: tokens that end a generation, the main one first.
    ``prefix`` and ``suffix``: what the model's own setting puts around a text that is encoded with ``add_special``.
    """

    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    pad_id: int | None = None
    unk_id: int | None = None
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()


class Tokenizer:
    """A model's tokenizer. Immutable and safe to share between threads.

    ``vocab_size`` is the model's: ids from the tokenizer's own size up to it are padding, stand for no bytes and are never
    encoded. ``adds_space``: whether encoding puts a space before the text (which decoding takes off again).
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        alphabet: Alphabet,
        special: SpecialTokens,
        vocab_size: int,
        adds_space: bool = False,
    ) -> None:
        self.vocab_size = vocab_size
        self.special = special
        self.adds_space = adds_space
        self._backend = unbounded(backend)
        self._alphabet = alphabet
        added = backend.get_added_tokens_decoder()
        roles = [special.bos_id, special.pad_id, *special.eos_ids]
        flagged = {token for token, item in added.items() if item.special}
        self.special_ids = frozenset(
            token for token in flagged.union(roles) if token is not None and token < vocab_size
        )
        self.added_ids = frozenset(token for token in added if token < vocab_size)
        # A token with a role is as special as one that is flagged so.
        self._named = [item for token, item in added.items() if token in self.special_ids and item.content]
        self.special_names = frozenset(item.content for item in self._named)
        self._special_name = _any_of(self.special_names)
        self._plain_reader: _PlainReader | None = None
        self._making_plain = threading.Lock()
        self._strips = any(item.lstrip or item.rstrip for item in added.values())
        self._ids = backend.get_vocab(with_added_tokens=True)
        self._texts: list[str] = [""] * vocab_size
        self._bytes: list[bytes] = [b""] * vocab_size
        for text, token in self._ids.items():
            if token < vocab_size:
                self._texts[token] = text
                self._bytes[token] = token_to_bytes(text, alphabet, added=token in added)
        # Bytes that the vocabulary lacks are left out of what is encoded.
        known = set(self._bytes)
        self._lost = bytes(value for value in range(256) if bytes((value,)) not in known)
        self._longest = max(map(len, self._bytes)) if self._keeps_bytes() else 0

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, None if the model has none."""
        return self.special.bos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a generation, the main one first."""
        return self.special.eos_ids

    @property
    def add_bos(self) -> bool:
        """Whether the model's own setting begins a text with ``bos_id``."""
        return self.special.bos_id is not None and self.special.bos_id in self.special.prefix

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Token ids of ``text``.

        ``add_special`` adds what the model's own setting puts around a text (BOS, where ``add_bos``). ``parse_special``
        False reads the names of special tokens in the text as plain text. Raises `InvalidRequest` for a text that is
        not Unicode (a lone surrogate).
        """
        return self._encoded(self._backend if parse_special else self._plain.backend, text, add_special)

    def _encoded(self, backend: tokenizers.Tokenizer, text: str, add_special: bool = False) -> list[int]:
        try:
            if len(text) < _LONG:
                ids = backend.encode(text, add_special_tokens=False).ids
            else:
                # A single text is encoded under the interpreter's lock; megabytes would stop a server for seconds.
                (encoding,) = backend.encode_batch_fast([text], add_special_tokens=False)
                ids = encoding.ids
        except (TypeError, UnicodeEncodeError) as error:
            raise InvalidRequest("prompt", f"is not a valid Unicode text: {error}", "invalid_type") from error
        return [*self.special.prefix, *ids, *self.special.suffix] if add_special else ids

    def least_tokens(self, text: str) -> int:
        """How many tokens ``text`` has at least, told without encoding it; 0 where that is not known."""
        if not self._longest:
            return 0
        kept = text.encode("utf-8", "surrogatepass").translate(None, self._lost)
        return -(-len(kept) // self._longest)

    def encode_continuation(self, text: str) -> list[int]:
        """Token ids of ``text`` in the middle of another text: no space before it, names of special tokens as plain text.

        Raises `InvalidRequest` for a text that is not Unicode.
        """
        if not self.adds_space:
            return self.encode(text, parse_special=False)
        # A character before the text takes the space that is put before every text; it is cut off again.
        head = self.encode(_FOREIGN, parse_special=False)
        ids = self.encode(_FOREIGN + text, parse_special=False)
        if ids[: len(head)] != head:
            raise InvalidRequest("prompt", "this tokenizer cannot encode a text that continues another one")
        return ids[len(head) :]

    def encode_with_data(self, text: str, data: Collection[int]) -> list[int]:
        """`encode` of a text in which some characters are data: those at the indices ``data``.

        A special token's name that covers one of them is read as plain text; all else, what is before and after such a name
        included, gets the ids that it would get if that name belonged to no token.
        """
        if not data or self._special_name is None:
            return self.encode(text)
        plain = self._plain
        pieces: list[str] = []
        done = position = 0
        while (found := self._special_name.search(text, position)) is not None:
            if any(index in data for index in range(found.start(), found.end())):
                position = found.start() + 1
                continue
            pieces += (text[done : found.start()], plain.stand_ins[found[0]])
            done = position = found.end()
        pieces.append(text[done:])
        return [plain.stood_for.get(token, token) for token in self._encoded(plain.backend, "".join(pieces))]

    def encode_parts(
        self, parts: Iterable[tuple[str, bool]], *, add_special: bool = False, continues: bool | None = None
    ) -> list[int]:
        """Token ids of the texts of ``parts`` joined; a part whose flag is set is data (see `encode_with_data`).

        With ``add_special`` they are a whole text, and get what the model's own setting puts around one. Otherwise they go on from
        another text: nothing is put before them, not even a space; unless ``continues`` is False: then they begin one that says
        itself what it begins with, as a rendered conversation does. Raises `InvalidRequest` for what is not Unicode, or
        cannot go on from a text.
        """
        pieces: list[str] = []
        data = set[int]()
        length = 0
        for text, is_data in parts:
            pieces.append(text)
            if is_data:
                data.update(range(length, length + len(text)))
            length += len(text)
        joined = "".join(pieces)
        if add_special:
            return [*self.special.prefix, *self.encode_with_data(joined, data), *self.special.suffix]
        if not self.adds_space or continues is False:
            return self.encode_with_data(joined, data)
        # As in `encode_continuation`.
        head = self.encode(_FOREIGN, parse_special=False)
        ids = self.encode_with_data(_FOREIGN + joined, {index + 1 for index in data})
        if ids[: len(head)] != head:
            raise InvalidRequest("prompt", "this tokenizer cannot encode a text that continues another one")
        return ids[len(head) :]

    def special_name_at(self, text: str, position: int) -> str | None:
        """The name of a special token that begins at ``position`` of ``text``, None if there is none."""
        found = None if self._special_name is None else self._special_name.match(text, position)
        return None if found is None else found[0]

    def special_name_starts(self, text: str) -> list[int]:
        """Where in ``text`` names of special tokens begin, overlapping ones included."""
        starts: list[int] = []
        position = 0
        while self._special_name is not None and (found := self._special_name.search(text, position)) is not None:
            starts.append(found.start())
            position = found.start() + 1
        return starts

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of ``ids``, the inverse of `encode`; bytes that are not UTF-8 become U+FFFD.

        A space that encoding put before the text is taken off. For a continuation, where that space belongs to the text,
        join `token_bytes` instead. Raises `InvalidRequest` for an id outside the vocabulary.
        """
        kept = [token for token in ids if not (skip_special and token in self.special_ids)]
        data = b"".join(map(self.token_bytes, kept))
        if self.adds_space:
            first = next((token for token in kept if token not in self.special_ids), None)
            if first is not None and self._bytes[first].startswith(b" "):
                at = sum(len(self._bytes[token]) for token in kept[: kept.index(first)])
                data = data[:at] + data[at + 1 :]
        return data.decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Exactly the bytes that ``token`` stands for: a special token's name, a byte token's one byte, nothing for padding."""
        return self._bytes[self._checked(token)]

    def token_text(self, token: int) -> str:
        """The token's bytes as text; U+FFFD stands for bytes that are not whole characters by themselves."""
        return self.token_bytes(token).decode("utf-8", errors="replace")

    def token_name(self, token: int) -> str:
        """How the vocabulary writes the token; empty for padding."""
        return self._texts[self._checked(token)]

    def id_of(self, name: str) -> int | None:
        """The id of the token that the vocabulary writes as ``name`` (``"<|im_end|>"``), None if there is none."""
        token = self._ids.get(name)
        return token if token is not None and token < self.vocab_size else None

    def all_token_bytes(self) -> Sequence[bytes]:
        """`token_bytes` of every id from 0 to ``vocab_size`` - 1."""
        return tuple(self._bytes)

    @property
    def _plain(self) -> _PlainReader:
        """Made when it is first asked for: it takes a tenth of a second and as much memory as the tokenizer itself."""
        with self._making_plain:
            if self._plain_reader is None:
                self._plain_reader = _PlainReader.of(self._backend, self._named)
            return self._plain_reader

    def _keeps_bytes(self) -> bool:
        """Whether tokens surely stand for all bytes of a text that the vocabulary has: then no few make a long text."""
        if self._alphabet != "byte_level" or self._backend.normalizer is not None or self._strips or self.adds_space:
            return False
        # What splits the text before the merges may drop what it splits at.
        ids = [self.encode(text) for text in _PROBES]
        if any(token >= self.vocab_size for tokens in ids for token in tokens):
            return False
        return [b"".join(map(self.token_bytes, tokens)) for tokens in ids] == [text.encode() for text in _PROBES]

    def _checked(self, token: int) -> int:
        if not 0 <= token < self.vocab_size:
            raise InvalidRequest("token_ids", f"token id {token} is outside the vocabulary of {self.vocab_size}")
        return token


def _any_of(names: Collection[str]) -> re.Pattern[str] | None:
    """Any of ``names``; of those that begin together the longest, as the library takes them."""
    ordered = sorted(filter(None, names), key=lambda name: (-len(name), name))
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


@dataclass(frozen=True, slots=True, eq=False)
class _PlainReader:
    """A tokenizer that reads the names of special tokens as the plain text they are.

    Of its own, because that setting belongs to the object and a request must not change it under another one. ``stand_ins``: by the name
    of a special token the text that it reads as that token all the same; ``stood_for``: the token by the id that it gives such a text.
    A stand-in is matched like the name (with the same stripping of white space around it) and holds a secret, so that no caller can
    write it.
    """

    backend: tokenizers.Tokenizer
    stand_ins: dict[str, str]
    stood_for: dict[int, int]

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer, special: Collection[tokenizers.AddedToken]) -> _PlainReader:
        """For the special tokens ``special`` of ``backend``, some of which it may not know to be special."""
        plain = unbounded(tokenizers.Tokenizer.from_str(backend.to_str()))
        plain.encode_special_tokens = True
        plain.add_special_tokens([_like(item, item.content, special=True) for item in special if not item.special])
        secret = secrets.token_hex(16)
        stand_ins: dict[str, str] = {}
        stood_for: dict[int, int] = {}
        for item in special:
            text = f"\ue000{secret}{len(stand_ins):x}\ue000"
            plain.add_tokens([_like(item, text, special=False)])
            stands, token = plain.token_to_id(text), backend.token_to_id(item.content)
            assert stands is not None and token is not None, "the one was just added, the other is the tokenizer's"
            stand_ins[item.content], stood_for[stands] = text, token
        return cls(plain, stand_ins, stood_for)


def _like(item: tokenizers.AddedToken, text: str, *, special: bool) -> tokenizers.AddedToken:
    """A token for ``text`` that is matched as ``item`` is."""
    return tokenizers.AddedToken(
        text,
        lstrip=item.lstrip,
        rstrip=item.rstrip,
        single_word=item.single_word,
        normalized=item.normalized,
        special=special,
    )


def unbounded(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Without the truncation and padding that a training run may have left in the file."""
    backend.no_truncation()
    backend.no_padding()
    return backend
