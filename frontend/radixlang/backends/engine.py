"""radixserve in this process: the offline API's engine as a backend."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec

from radixlang.backends.base import (
    Call,
    Continuations,
    Hold,
    Message,
    Piece,
    RoleMarks,
    Text,
)
from radixlang.backends.engine_terms import answer_of, engine_constraint, output_of, sampling_for
from radixlang.backends.generate_answers import hold_of
from radixlang.backends.generate_fields import written_name
from radixlang.backends.memo import Memo
from radixlang.backends.role_marks import RoleMarker
from radixlang.backends.score_trie import Answer, Question, score
from radixlang.backends.text_parts import Beginning, Part, beginning_of, encoded_weight, joined
from radixlang.constraints import Constraint
from radixlang.errors import BackendClosed, BackendError, Refused, Unsupported

if TYPE_CHECKING:
    from types import TracebackType

    from radixserve import Engine, SamplingParams
    from radixserve.messages import GenerationChunk, GenerationOutput

_KEPT_TEXT = 16 << 20
# From this many characters on a text is tokenized beside the event loop.
_LONG = 16_384
_DEFAULT_MAX_TOKENS = 128


class EngineBackend:
    """An engine that somebody else made and closes. ``cache_salt``: prefixes are shared only with requests of the same salt."""

    token_exact: ClassVar[bool] = True

    def __init__(self, engine: Engine, *, cache_salt: str | None = None) -> None:
        self._engine = engine
        self._salt = cache_salt
        self._encoded: Memo[tuple[tuple[Part, ...], Beginning], tuple[int, ...]] = Memo(_KEPT_TEXT, encoded_weight)
        self._roles = RoleMarker(self._render, self.name)

    @property
    def name(self) -> str:
        """What errors and reports call it."""
        return f"radixserve ({self._engine.info.model})"

    async def aclose(self) -> None:
        """Nothing of this is the backend's own."""

    async def info(self) -> dict[str, Any]:
        """Facts about the model."""
        info = self._engine.info
        return {
            "model": info.model,
            "context_length": info.context_length,
            "architecture": info.architecture,
            "vocab_size": info.vocab_size,
            "has_chat_template": self._engine.chat_format.template is not None,
        }

    async def flush(self) -> None:
        """Drop what is cached and not in use."""
        with self._refusals():
            await asyncio.to_thread(self._engine.flush_cache)

    # ---------------------------------------------------------------- texts

    async def encode(self, parts: Sequence[Text], *, first: bool) -> list[int]:
        """The tokens of ``parts`` read as one text, with the model's begin token where they begin a sequence."""
        key = (joined(parts), beginning_of(parts, first=first))
        if not key[0] and key[1] != "model":
            return []
        return list(await self._encoded.get(key, lambda: self._tokenize(*key)))

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        with self._refusals():
            return self._engine.detokenize(token_ids)

    async def role(self, role: str, earlier: Sequence[Message]) -> RoleMarks:
        """The marks of the next message. Raises `Unsupported` without a template."""
        if self._engine.chat_format.template is None:
            raise Unsupported("roles", self.name, "the model has no chat template")
        return await self._roles.marks(role, earlier)

    async def _tokenize(self, parts: tuple[Part, ...], beginning: Beginning) -> tuple[int, ...]:
        def encode() -> tuple[int, ...]:
            continues = None if beginning == "model" else beginning == "none"
            return tuple(self._engine.encode_parts(parts, add_special=beginning == "model", continues=continues))

        with self._refusals():
            long = sum(len(text) for text, _ in parts) >= _LONG
            return await asyncio.to_thread(encode) if long else encode()

    async def _render(self, messages: Sequence[Message], asking: bool) -> str:
        from radixserve.chat.conversation import parse_conversation

        with self._refusals():
            conversation = parse_conversation([{"role": item.role, "content": item.content} for item in messages])
            return self._engine.chat_format.render(conversation, add_generation_prompt=asking).text

    # ---------------------------------------------------------------- generate

    async def generate(self, token_ids: Sequence[int], call: Call) -> AsyncGenerator[Piece, None]:
        """Continue ``token_ids``. Closing this ends the generation."""
        began = time.perf_counter()
        with self._refusals(call.constraint):
            chunks = self._engine.astream(
                list(token_ids),
                self._sampling(call),
                priority=call.priority,
                cache_salt=self._salt,
                heal=call.heal,
            )
            async with contextlib.aclosing(cast("AsyncGenerator[GenerationChunk, None]", chunks)) as stream:
                async for chunk in stream:
                    if chunk.output is not None:
                        finished = self._checked(chunk.output)
                        output = output_of(finished, self._engine.tokenizer, wall_s=time.perf_counter() - began)
                        text = chunk.text if call.stream else output.samples[chunk.index].text
                        yield Piece(chunk.index, text, output)
                    elif call.stream and chunk.text:
                        yield Piece(chunk.index, chunk.text)

    def _sampling(self, call: Call) -> SamplingParams:
        """What a request has that says this: the model's own defaults under what is given."""
        given: dict[str, Any] = call.sampling.given()
        if self._engine.default_sampling.max_tokens is None:
            given.setdefault("max_tokens", _DEFAULT_MAX_TOKENS)
        if call.constraint is not None:
            given["constraint"] = engine_constraint(call.constraint)
        return msgspec.structs.replace(self._engine.default_sampling, **given)

    # ---------------------------------------------------------------- score

    async def score(
        self, token_ids: Sequence[int], continuations: Sequence[Sequence[int]], *, priority: int = 0
    ) -> Continuations:
        """How likely each continuation is; see `score_trie` for the requests that it takes."""
        given = list(token_ids) or list(await self.encode((), first=True)) or [self._engine.info.eos_ids[0]]

        async def ask(questions: Sequence[Question]) -> list[Answer]:
            with self._refusals():
                outputs = await self._engine.agenerate(
                    [list(question.token_ids) for question in questions],
                    [sampling_for(question) for question in questions],
                    priority=priority,
                    cache_salt=self._salt,
                )
            answered = zip(questions, cast("list[GenerationOutput]", outputs), strict=True)
            return [answer_of(question, self._checked(output)) for question, output in answered]

        return await score(ask, given, continuations)

    # ---------------------------------------------------------------- hold

    async def hold(self, token_ids: Sequence[int], *, seconds: float, priority: int = 0) -> Hold:
        """Compute the prefix if it is not cached, and keep it for at most ``seconds``."""
        began = time.perf_counter()
        with self._refusals():
            held = await self._engine.ahold(list(token_ids), seconds, priority=priority, cache_salt=self._salt)
        return hold_of(held, wall_s=time.perf_counter() - began)

    async def release(self, holds: Sequence[str]) -> None:
        """End holds before their time."""
        if holds:
            with self._refusals():
                await self._engine.arelease(list(holds))

    def _checked(self, output: GenerationOutput) -> GenerationOutput:
        """``output``; raises what made the request fail, if it did."""
        if output.error is None:
            return output
        if output.error_param is not None:
            raise Refused(output.error_param, output.error)
        raise BackendError(f"{self.name}: the request failed: {output.error}")

    @contextlib.contextmanager
    def _refusals(self, constraint: Constraint | None = None) -> Iterator[None]:
        """The engine's errors as this package's, with the names that programs have for its fields."""
        from radixserve.errors import EngineClosed, InvalidRequest, RadixServeError

        try:
            yield
        except InvalidRequest as error:
            raise Refused(written_name(error.param, constraint), error.message, error.code) from error
        except Refused as refused:
            raise Refused(written_name(refused.param, constraint), refused.message, refused.code) from refused
        except EngineClosed as error:
            raise BackendClosed(f"{self.name}: {error}") from error
        except RadixServeError as error:
            raise BackendError(f"{self.name}: {error}") from error


class Runtime(EngineBackend):
    """An engine of the program's own: it is made here and closed with this.

    ``model`` and ``options`` are those of `radixserve.Engine`. Loading takes as long as it takes; afterwards it may be used from
    any thread and event loop. Close it, or use it as a context manager.
    """

    def __init__(self, model: str = "smollm2", *, cache_salt: str | None = None, **options: Any) -> None:
        from radixserve import Engine

        super().__init__(Engine(model, **options), cache_salt=cache_salt)

    @property
    def engine(self) -> Engine:
        """The engine itself."""
        return self._engine

    async def aclose(self) -> None:
        """End what runs and give the model's memory back; safe to call twice."""
        await asyncio.to_thread(self._engine.close)

    def shutdown(self) -> None:
        """`aclose` for programs without an event loop."""
        self._engine.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
