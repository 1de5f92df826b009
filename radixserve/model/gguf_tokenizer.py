"""The tokenizer of a GGUF file, rebuilt from its metadata.

Two models are known. ``gpt2`` is byte-level BPE: ``tokenizer.ggml.pre`` names how a text is cut before merging, and each name
stands for the patterns that llama.cpp defines for it (no Unicode normalization among them). ``llama`` is SentencePiece's BPE:
no cutting, spaces written as U+2581, merges implied by the tokens' scores, bytes for what the vocabulary lacks. A name
that is not in the table is an error: a guess would give other token ids without anybody noticing.
"""

from __future__ import annotations

from dataclasses import dataclass

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from radixserve.errors import ModelLoadError, UnknownTokenizer
from radixserve.model.gguf_metadata import Metadata
from radixserve.model.token_bytes import SPACE_MARK, Alphabet
from radixserve.model.tokenizer import SpecialTokens, Tokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class _Pre:
    """A pre-type: patterns that cut a text one after the other, each inside the pieces of the one before.

    ``whole_words``: a piece that is itself a token is taken as it is, whatever the merges would give. ``add_bos``: the
    default of ``tokenizer.ggml.add_bos_token``.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


_DEFAULT = _Pre((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))
_LLAMA3 = _Pre((rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",), whole_words=True, add_bos=True)
_QWEN2 = _Pre((rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}",))
_SINGLE_DIGITS = _Pre((r"\p{N}", _GPT2))
_PRE_TYPES = {
    "default": _DEFAULT,
    "gpt-2": _Pre((_GPT2,)),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
}
# Control tokens that end a turn or a text in these model families; files name only one of them as the end token.
_END_NAMES = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
)


def build_tokenizer(metadata: Metadata, source: str, *, vocab_size: int) -> Tokenizer:
    """The tokenizer that ``metadata`` describes.

    Raises `UnknownTokenizer` naming a model or pre-type that is not implemented, `ModelLoadError` for arrays that do not
    fit together.
    """
    kind = metadata.typed("tokenizer.ggml.model", str)
    tokens = metadata.strings("tokenizer.ggml.tokens")
    if kind is None or tokens is None:
        raise UnknownTokenizer(
            f"{source}: holds no tokenizer (tokenizer.ggml.model or tokenizer.ggml.tokens is missing)"
        )
    if len(set(tokens)) != len(tokens):
        raise ModelLoadError(f"{source}: tokenizer.ggml.tokens holds a token twice")
    types = metadata.numbers("tokenizer.ggml.token_type", len(tokens))
    kinds = [_NORMAL] * len(tokens) if types is None else [int(item) for item in types]
    if kind == "gpt2":
        pre = _pre_type(metadata, source)
        backend = _byte_level(tokens, metadata.strings("tokenizer.ggml.merges"), pre, source)
        add_bos, adds_space = pre.add_bos, False
    elif kind == "llama":
        backend, adds_space = _sentencepiece(metadata, tokens, kinds, source)
        add_bos = True
    else:
        raise UnknownTokenizer(f"{source}: tokenizer.ggml.model is {kind!r}; implemented are 'gpt2' and 'llama'")
    _add_tokens(backend, tokens, kinds)
    special = _special_tokens(metadata, tokens, kinds, add_bos, source, default_bos=1 if kind == "llama" else None)
    alphabet: Alphabet = "byte_level" if kind == "gpt2" else "sentencepiece"
    return Tokenizer(backend, alphabet=alphabet, special=special, vocab_size=vocab_size, adds_space=adds_space)


def _pre_type(metadata: Metadata, source: str) -> _Pre:
    name = metadata.typed("tokenizer.ggml.pre", str)
    pre = _PRE_TYPES.get(name) if name is not None else None
    if pre is None:
        raise UnknownTokenizer(
            f"{source}: tokenizer.ggml.pre is {name!r}; implemented are {', '.join(sorted(_PRE_TYPES))}"
        )
    return pre


def _byte_level(tokens: list[str], merges: list[str] | None, pre: _Pre, source: str) -> tokenizers.Tokenizer:
    if merges is None:
        raise ModelLoadError(f"{source}: tokenizer.ggml.merges is missing")
    pairs = []
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not space or not left or not right or " " in right:
            raise ModelLoadError(f"{source}: tokenizer.ggml.merges holds {merge!r}, which is not a pair")
        pairs.append((left, right))
    backend = tokenizers.Tokenizer(_bpe(tokens, pairs, source, ignore_merges=pre.whole_words))
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in pre.patterns]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _bpe(
    tokens: list[str],
    merges: list[tuple[str, str]],
    source: str,
    *,
    ignore_merges: bool = False,
    unknown: str | None = None,
) -> models.BPE:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    options = {} if unknown is None else {"unk_token": unknown, "byte_fallback": True, "fuse_unk": True}
    try:
        return models.BPE(vocabulary, merges, ignore_merges=ignore_merges, **options)
    except Exception as error:  # the library raises nothing more precise
        raise ModelLoadError(f"{source}: the tokenizer's merges do not fit its tokens: {error}") from error


def _sentencepiece(
    metadata: Metadata, tokens: list[str], kinds: list[int], source: str
) -> tuple[tokenizers.Tokenizer, bool]:
    scores = metadata.numbers("tokenizer.ggml.scores", len(tokens))
    if scores is None:
        raise ModelLoadError(f"{source}: tokenizer.ggml.scores is missing")
    unknown = metadata.typed("tokenizer.ggml.unknown_token_id", int)
    unknown = 0 if unknown is None else unknown
    if not 0 <= unknown < len(tokens):
        raise ModelLoadError(f"{source}: tokenizer.ggml.unknown_token_id = {unknown} is outside the vocabulary")
    merges = _merges_from_scores(tokens, kinds, [float(score) for score in scores])
    backend = tokenizers.Tokenizer(_bpe(tokens, merges, source, unknown=tokens[unknown]))
    stated = metadata.typed("tokenizer.ggml.add_space_prefix", bool)
    adds_space = True if stated is None else bool(stated)
    replace = normalizers.Replace(" ", SPACE_MARK)
    # The library normalizes each stretch between special tokens by itself, so each gets its space, as in llama.cpp.
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), replace]) if adds_space else replace
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend, adds_space


def _merges_from_scores(tokens: list[str], kinds: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """The merges that SentencePiece's BPE makes, best first.

    It joins, of all neighbours whose concatenation is a token, those with the highest score (Kudo and Richardson 2018), so
    every way to cut a token into two tokens is a merge with the rank of that token's score.
    """
    known = {token: index for index, token in enumerate(tokens) if kinds[index] in (_NORMAL, _USER_DEFINED, _UNUSED)}
    ranked = []
    for token, index in known.items():
        if kinds[index] != _NORMAL:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in known and right in known:
                ranked.append((-scores[index], index, known[left], known[right], left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def _add_tokens(backend: tokenizers.Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Make the tokens that are matched as a whole, before anything is cut or merged."""
    special = {_CONTROL: True, _UNKNOWN: True, _USER_DEFINED: False}
    added = [
        AddedToken(token, special=special[kind], normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in special and token
    ]
    backend.add_special_tokens([item for item in added if item.special])
    backend.add_tokens([item for item in added if not item.special])


def _special_tokens(
    metadata: Metadata, tokens: list[str], kinds: list[int], add_bos: bool, source: str, *, default_bos: int | None
) -> SpecialTokens:
    def token_id(role: str) -> int | None:
        value = metadata.typed(f"tokenizer.ggml.{role}_token_id", int)
        if value is not None and not 0 <= value < len(tokens):
            raise ModelLoadError(f"{source}: tokenizer.ggml.{role}_token_id = {value} is outside the vocabulary")
        return value

    def setting(name: str, default: bool) -> bool:
        value = metadata.typed(f"tokenizer.ggml.{name}", bool)
        return default if value is None else bool(value)

    bos = token_id("bos")
    if bos is None and default_bos is not None and len(tokens) > default_bos and kinds[default_bos] == _CONTROL:
        bos = default_bos
    named = [token_id("eos"), token_id("eot"), token_id("eom")]
    index = {token: position for position, token in enumerate(tokens) if kinds[position] == _CONTROL}
    eos_ids = tuple(
        dict.fromkeys(token for token in [*named, *(index.get(name) for name in _END_NAMES)] if token is not None)
    )
    eos = named[0]
    return SpecialTokens(
        bos_id=bos,
        eos_ids=eos_ids,
        pad_id=token_id("padding"),
        unk_id=token_id("unknown"),
        prefix=(bos,) if bos is not None and setting("add_bos_token", add_bos) else (),
        suffix=(eos,) if eos is not None and setting("add_eos_token", False) else (),
    )
