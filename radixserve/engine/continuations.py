"""What a new request's output has to follow: the text of tokens that were taken off its prompt, a constraint, or both."""

from __future__ import annotations

from collections.abc import Sequence

from radixserve.engine.constrained import ConstrainedOutput, constrained_output
from radixserve.engine.detokenizer import TokenBytes
from radixserve.engine.healing import Healed, HealedOutput, heal_prompt
from radixserve.engine.token_index import TokenIndex
from radixserve.errors import InvalidRequest, UnsupportedFeature
from radixserve.grammar.compiler import Compiled, ConstraintCompiler
from radixserve.messages import SamplingParams
from radixserve.scheduler.request import Continuation


class Continuations:
    """Makes them for one model. ``compiler``, ``token_index``: None where there are no constraints, or nothing is healed."""

    def __init__(
        self,
        tokenizer: TokenBytes,
        eos_ids: Sequence[int],
        *,
        compiler: ConstraintCompiler | None,
        token_index: TokenIndex | None,
    ) -> None:
        self._special_ids = tokenizer.special_ids
        self._end_tokens = frozenset(eos_ids)
        self._compiler = compiler
        self._index = token_index

    def heal(self, wanted: object, prompt: Sequence[int], max_tokens: int) -> Healed | None:
        """What is to be taken off ``prompt``, if that is ``wanted`` and anything is drawn. Raises `InvalidRequest`."""
        if not isinstance(wanted, bool):
            raise InvalidRequest("heal", "must be true or false", "invalid_type")
        if not wanted or max_tokens == 0:
            return None
        if self._index is None:
            raise UnsupportedFeature("heal", "this engine does not know its vocabulary")
        return heal_prompt(self._index, prompt)

    def begin(
        self, sampling: SamplingParams, max_tokens: int, compiled: Compiled | None, healed: Healed | None
    ) -> Continuation | None:
        """The continuation of a new request, None for one that is free. ``compiled``: its constraint, where that was done before.

        Raises `InvalidRequest`.
        """
        constrained = self._constrained(sampling, max_tokens, compiled)
        if healed is None:
            return constrained
        assert self._index is not None, "it healed the prompt"
        return HealedOutput(self._index, healed, constrained, max_tokens=max_tokens)

    def _constrained(
        self, sampling: SamplingParams, max_tokens: int, compiled: Compiled | None
    ) -> ConstrainedOutput | None:
        if sampling.constraint is None:
            return None
        if self._compiler is None:
            raise UnsupportedFeature("constraint", "this engine has no compiler of constraints")
        return constrained_output(
            compiled or self._compiler.compile(sampling.constraint),
            sampling,
            end_tokens=self._end_tokens,
            special_ids=self._special_ids,
            max_tokens=max_tokens,
        )
