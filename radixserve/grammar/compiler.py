"""Compiles constraints: within limits, once for each content, away from whoever must not wait.

The library lets other threads run while it compiles, and its own limits bound the work of a grammar; the counts of
`radixserve.grammar.limits` bound what they do not. Compiling happens on threads of its own, because deeply nested rules
need a deeper stack than a thread usually has, and because whoever waits for it waits for a bounded time only.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field

import llguidance
import msgspec
import numpy as np

from radixserve.constraints import Constraint, check_constraint
from radixserve.errors import InvalidRequest, MatcherFailed
from radixserve.grammar.base import Vocabulary
from radixserve.grammar.closing import LONGEST_CLOSING, Closing
from radixserve.grammar.llguidance_matcher import LLGuidanceMatcher, in_one_line, parser_limits
from radixserve.grammar.llguidance_tokens import build_tokenizer
from radixserve.grammar.schema_helper import SchemaHelper
from radixserve.grammar.special_tokens import SpecialTokens
from radixserve.grammar.stacks import DeepStackThreads
from radixserve.grammar.translation import translate
from radixserve.messages import SamplingParams

COMPILE_SECONDS = 1.0
_CACHED = 256
_THREADS = 2


class Compiled:
    """A constraint, ready to be matched. Safe to share between threads.

    ``closing`` brings an output of it to a valid end.
    """

    __slots__ = ("_first_way", "_looked", "_prototype", "closing")

    def __init__(self, prototype: LLGuidanceMatcher, closing: Closing) -> None:
        self.closing = closing
        self._prototype = prototype
        self._looked = False
        self._first_way: list[int] | None = None

    def matcher(self) -> LLGuidanceMatcher:
        """A matcher at the beginning."""
        return self._prototype.copy()

    def first_way(self, max_tokens: int) -> list[int]:
        """A whole output of at most ``max_tokens`` tokens; raises `InvalidRequest` if none was found."""
        if not self._looked:
            try:
                self._first_way = self.closing.way(self.matcher(), LONGEST_CLOSING)
            except MatcherFailed:
                self._first_way = None
            self._looked = True
        if self._first_way is None or len(self._first_way) > max_tokens:
            least = "within limits" if self._first_way is None else f"in fewer than {len(self._first_way)} tokens"
            raise InvalidRequest(
                "finish_json", f"cannot be promised: no valid end was found {least}, and max_tokens is {max_tokens}"
            )
        return list(self._first_way)


@dataclass(slots=True)
class CompilerStats:
    """Counters since the start: compiled without and with an error, and answered from the cache."""

    compiled: int = 0
    refused: int = 0
    hits: int = 0


@dataclass(slots=True)
class _Entry:
    """``done`` has the result or the refusal; ``started`` is set when a thread begins with it."""

    done: Future[Compiled] = field(default_factory=Future)
    started: threading.Event = field(default_factory=threading.Event)


class ConstraintCompiler:
    """Compiles for one model. Thread-safe.

    ``eos_ids`` end a sentence: they are allowed exactly where it is complete. Results are kept for the last 256 contents,
    refusals too; threads that ask for the same content at once wait for one compilation.
    """

    def __init__(self, vocabulary: Vocabulary, eos_ids: Sequence[int], *, seconds: float = COMPILE_SECONDS) -> None:
        self.stats = CompilerStats()
        self._vocabulary = vocabulary
        self._eos_ids = tuple(eos_ids)
        self._seconds = seconds
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._threads = DeepStackThreads(_THREADS, "radixserve-grammar")
        self._closing = Closing(vocabulary)
        self._special = SpecialTokens(vocabulary, eos_ids)
        self._helper = SchemaHelper(seconds)
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._tokenizer_lock = threading.Lock()

    def compile(self, constraint: Constraint) -> Compiled:
        """The compiled ``constraint``; waits for it, so call it on no event loop and on no engine thread.

        Raises `InvalidRequest` that says what cannot be enforced or is too large. What takes longer than a second is refused
        as well; it goes on in the background, and a later request finds what became of it.
        """
        check_constraint(constraint)
        entry = self._entry(constraint)
        # Waiting for a free thread is nobody's fault; the limit is on the constraint's own time.
        entry.started.wait()
        while True:
            try:
                return entry.done.result(timeout=self._seconds)
            except FutureTimeout:
                # The start of a helper process is nobody's fault either.
                if not self._helper.wait_for_start():
                    break
        raise InvalidRequest(
            "constraint", f"is too complex: not compiled within {self._seconds:g} s", "constraint_too_complex"
        )

    def prepare(self, sampling: SamplingParams) -> Compiled | None:
        """What `EngineCore.add` takes as ``compiled``: None without a constraint. Waits and raises as `compile` does."""
        if sampling.constraint is None:
            return None
        compiled = self.compile(sampling.constraint)
        if sampling.finish_json:
            compiled.first_way(LONGEST_CLOSING)
        return compiled

    def _entry(self, constraint: Constraint) -> _Entry:
        key = msgspec.msgpack.encode(constraint)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
                self.stats.hits += 1
                return entry
            entry = self._entries[key] = _Entry()
            while len(self._entries) > _CACHED:
                self._entries.popitem(last=False)
        self._threads.submit(lambda: self._run(constraint, entry))
        return entry

    def _run(self, constraint: Constraint, entry: _Entry) -> None:
        try:
            self._built_tokenizer()
            entry.started.set()
            compiled = self._compile(constraint)
        except InvalidRequest as error:
            self.stats.refused += 1
            entry.done.set_exception(error)
        except BaseException as error:
            entry.done.set_exception(error)
            raise
        else:
            self.stats.compiled += 1
            entry.done.set_result(compiled)
        finally:
            entry.started.set()

    def _compile(self, constraint: Constraint) -> Compiled:
        tokenizer = self._built_tokenizer()
        try:
            grammar = translate(constraint, self._special, self._helper)
        except ValueError as error:
            if isinstance(error, InvalidRequest):
                raise
            raise _refused(str(error)) from None
        inner = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
        if inner.is_error():
            raise _refused(inner.get_error())
        matcher = LLGuidanceMatcher(inner)
        self._check_language(matcher)
        return Compiled(matcher, self._closing)

    def _check_language(self, matcher: LLGuidanceMatcher) -> None:
        """A grammar without any sentence, or too complex for its first token, shows here and not in the middle of a step."""
        mask = np.zeros(-(-self._vocabulary.vocab_size // 32), np.uint32)
        try:
            probe = matcher.copy()
            probe.fill_mask(mask)
            if not mask.any():
                raise _refused("nothing can satisfy it")
            probe.try_consume(probe.forced_tokens())
        except MatcherFailed as error:
            raise _refused(str(error)) from None

    def _built_tokenizer(self) -> llguidance.LLTokenizer:
        with self._tokenizer_lock:
            if self._tokenizer is None:
                if not self._eos_ids:
                    raise InvalidRequest("constraint", "this model has no end token", "unsupported_feature")
                self._tokenizer = build_tokenizer(self._vocabulary, self._eos_ids)
            return self._tokenizer


def _refused(error: str) -> InvalidRequest:
    return InvalidRequest("constraint", f"cannot be enforced: {in_one_line(error)}", "unsupported_constraint")
