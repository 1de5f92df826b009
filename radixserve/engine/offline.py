"""The offline API: `Engine`, the whole machine inside one process, with a synchronous and an asynchronous face."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Literal, overload

from radixserve.chat.conversation import parse_conversation
from radixserve.chat.events import ParsedMessage
from radixserve.chat.tools import Toolbox, parse_tools
from radixserve.engine.arguments import (
    read_continuations,
    read_ids,
    read_parts,
    read_prompt,
    read_prompts,
    read_sampling,
)
from radixserve.engine.handle import EngineHandle, Prompt
from radixserve.engine.intake import check_salt
from radixserve.engine.streams import ChunkStream, Submission, collect, stream_chunks
from radixserve.errors import InvalidRequest, RequestFailed
from radixserve.messages import (
    GenerationChunk,
    GenerationOutput,
    HoldOutput,
    Pooling,
    SamplingParams,
    ScoreOutput,
)


class Engine(EngineHandle):
    """A loaded model, ready to generate.

    ``model``: ``smollm2`` (embedded), a ``.gguf`` file, a Hugging Face directory or a hub id; ``options`` are those of
    `radixserve.config`, by name. Any number of threads and event loops may call it at once; their requests run in
    one batch. Close it, or use it as a context manager. Raises `ConfigError` and `ModelLoadError`.
    """

    # ---------------------------------------------------------------- generate

    @overload
    def generate(
        self,
        prompt: Prompt | list[str] | list[list[int]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stream: Literal[True],
        priority: int = 0,
        cache_salt: str | None = None,
        explain: bool = False,
        heal: bool = False,
    ) -> Iterator[GenerationChunk]: ...

    @overload
    def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stream: Literal[False] = False,
        priority: int = 0,
        cache_salt: str | None = None,
        explain: bool = False,
        heal: bool = False,
    ) -> GenerationOutput: ...

    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stream: Literal[False] = False,
        priority: int = 0,
        cache_salt: str | None = None,
        explain: bool = False,
        heal: bool = False,
    ) -> list[GenerationOutput]: ...

    def generate(
        self,
        prompt: Prompt | list[str] | list[list[int]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stream: bool = False,
        priority: int = 0,
        cache_salt: str | None = None,
        explain: bool = False,
        heal: bool = False,
    ) -> GenerationOutput | list[GenerationOutput] | Iterator[GenerationChunk]:
        """Continue a prompt, or several together in one batch.

        ``prompt``: a text, token ids, or a list of either. ``sampling``: for all prompts, or one for each; None
        takes the model's defaults and at most 16 tokens. ``stream``: an iterator of chunks instead; leaving it early
        aborts what still runs. ``cache_salt``: shares prefixes only with requests of the same salt. ``explain``: the
        outputs say why their prompts hit no more of the cache. ``heal``: the last tokens of a prompt may be replaced by others that
        begin with their text (`radixserve.engine.healing`); outputs say how many were. A request that fails while it runs has
        ``finish_reason`` ``error`` and its ``error``; the others are not touched by it. Raises `InvalidRequest`
        before anything is queued, and `EngineClosed`.
        """
        prompts, single = read_prompts(prompt, self.tokenize)
        chunks = ChunkStream(self._loop, self._submission(prompts, sampling, priority, cache_salt, explain, heal=heal))
        if stream:
            return chunks
        outputs = collect(chunks, len(prompts))
        return outputs[0] if single else outputs

    async def agenerate(
        self,
        prompt: Prompt | list[str] | list[list[int]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        explain: bool = False,
        heal: bool = False,
    ) -> GenerationOutput | list[GenerationOutput]:
        """`generate` for an event loop; cancelling the task aborts the requests."""
        prompts, single = read_prompts(prompt, self.tokenize)
        outputs: dict[int, GenerationOutput] = {}
        submission = self._submission(prompts, sampling, priority, cache_salt, explain, heal=heal)
        async for chunk in stream_chunks(self._loop, submission):
            if chunk.output is not None:
                outputs[chunk.prompt_index] = chunk.output
        ordered = [outputs[index] for index in range(len(prompts))]
        return ordered[0] if single else ordered

    def astream(
        self,
        prompt: Prompt | list[str] | list[list[int]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        explain: bool = False,
        heal: bool = False,
    ) -> AsyncIterator[GenerationChunk]:
        """``generate(stream=True)`` for an event loop; leaving it early aborts what still runs.

        The requests are queued, and refused, when iteration begins.
        """
        prompts, _ = read_prompts(prompt, self.tokenize)
        return stream_chunks(self._loop, self._submission(prompts, sampling, priority, cache_salt, explain, heal=heal))

    @overload
    def chat(
        self,
        messages: Sequence[dict[str, Any]],
        sampling: SamplingParams | None = None,
        *,
        stream: Literal[True],
        tools: Sequence[dict[str, Any]] | None = None,
        tool_choice: str | dict[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        explain: bool = False,
    ) -> Iterator[GenerationChunk]: ...

    @overload
    def chat(
        self,
        messages: Sequence[dict[str, Any]],
        sampling: SamplingParams | None = None,
        *,
        stream: Literal[False] = False,
        tools: Sequence[dict[str, Any]] | None = None,
        tool_choice: str | dict[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        explain: bool = False,
    ) -> GenerationOutput: ...

    def chat(
        self,
        messages: Sequence[dict[str, Any]],
        sampling: SamplingParams | None = None,
        *,
        stream: bool = False,
        tools: Sequence[dict[str, Any]] | None = None,
        tool_choice: str | dict[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        explain: bool = False,
    ) -> GenerationOutput | Iterator[GenerationChunk]:
        """Answer a conversation: ``messages`` are mappings with ``role`` and ``content``, rendered by the model's
        chat template.

        ``tools``, ``tool_choice`` and ``parallel_tool_calls`` are OpenAI's; the arguments of a call always match the
        tool's schema, and `parse_chat` takes an answer apart. Without ``max_tokens`` the answer may take what the
        context leaves. Raises as `generate` does.
        """
        toolbox = parse_tools(tools, tool_choice, parallel_tool_calls)
        params = self.default_sampling if sampling is None else sampling
        tokens = self._chat_tokens(messages, toolbox, constrained=params.constraint is not None)
        params = self.chat_format.sampling(params, toolbox)
        try:
            chunks = ChunkStream(self._loop, self._submission([tokens], params, priority, cache_salt, explain))
        except InvalidRequest as error:
            raise self.chat_format.refused(error, toolbox) from error
        return chunks if stream else collect(chunks, 1)[0]

    def apply_chat_template(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        tool_choice: str | dict[str, Any] | None = None,
    ) -> list[int]:
        """The token ids of a conversation, ready for the model's answer."""
        return self._chat_tokens(messages, parse_tools(tools, tool_choice), constrained=False)

    def parse_chat(
        self,
        output: GenerationOutput,
        *,
        sample: int = 0,
        tools: Sequence[dict[str, Any]] | None = None,
        tool_choice: str | dict[str, Any] | None = None,
    ) -> ParsedMessage:
        """Content, reasoning and tool calls of an answer that `chat` gave with the same tools."""
        text = output.samples[sample].text if output.samples else output.text
        prompt = self.chat_format.prompt_of(output.prompt_token_ids)
        return self.chat_format.output_parser(parse_tools(tools, tool_choice), prompt).parse(text)

    def _chat_tokens(self, messages: Sequence[dict[str, Any]], toolbox: Toolbox, *, constrained: bool) -> list[int]:
        conversation = parse_conversation(messages)
        return self.chat_format.prompt(conversation, toolbox, close_reasoning=constrained).token_ids

    def score(
        self, prompt: Prompt, continuations: Sequence[Prompt], *, cache_salt: str | None = None
    ) -> list[ScoreOutput]:
        """How likely each continuation is after ``prompt``: the model's raw log-probabilities, token by token.

        Texts are tokenized by themselves, so a continuation begins with a token of its own. All are scored in one
        batch and share the prompt.
        """
        head = read_prompt(prompt, self.tokenize)
        tails = read_continuations(continuations, self.tokenizer.encode)
        params = SamplingParams(max_tokens=0, prompt_logprobs=0, logprob_start=len(head), temperature=0)
        submission = self._submission([[*head, *tail] for tail in tails], params, cache_salt=cache_salt)
        outputs = collect(ChunkStream(self._loop, submission), len(tails))
        scores = []
        for tail, output in zip(tails, outputs, strict=True):
            if output.error is not None:
                raise RequestFailed(output.rid, output.error)
            entries = (output.prompt_logprobs or [])[len(head) :]
            logprobs = [entry.logprob for entry in entries if entry is not None]
            scores.append(
                ScoreOutput(token_ids=tail, logprobs=logprobs, total=sum(logprobs), cached_tokens=output.cached_tokens)
            )
        return scores

    def hold(self, prompt: Prompt, seconds: float, *, priority: int = 0, cache_salt: str | None = None) -> HoldOutput:
        """Compute ``prompt`` where it is not cached, and keep it in the cache for at most ``seconds``.

        A hint: the engine's options bound all holds, and under pressure they give way before any request has to. Raises
        `InvalidRequest`, and `RequestFailed` where computing failed.
        """
        submission = self._hold_submission(prompt, seconds, priority, cache_salt)
        return _held(collect(ChunkStream(self._loop, submission), 1)[0])

    async def ahold(
        self, prompt: Prompt, seconds: float, *, priority: int = 0, cache_salt: str | None = None
    ) -> HoldOutput:
        """`hold` for an event loop; cancelling the task ends it, and the hold."""
        submission = self._hold_submission(prompt, seconds, priority, cache_salt)
        outputs = [chunk.output async for chunk in stream_chunks(self._loop, submission) if chunk.output is not None]
        return _held(outputs[0])

    def release(self, holds: Sequence[str]) -> int:
        """End holds by their ids before their time; unknown ones are left alone. Returns how many there were."""
        ids = read_ids(holds)
        return self._loop.call(lambda core: core.release(ids)).result()

    async def arelease(self, holds: Sequence[str]) -> int:
        """`release` for an event loop."""
        ids = read_ids(holds)
        return await asyncio.wrap_future(self._loop.call(lambda core: core.release(ids)))

    def embed(
        self, texts: Sequence[Prompt], *, pooling: Pooling = "mean", cache_salt: str | None = None
    ) -> list[list[float]]:
        """One vector of length 1 for each text (or list of token ids): the pooled final hidden states of its tokens.

        ``mean`` needs the states of all tokens, so each is computed anew; ``last`` takes the last token's, and the rest may
        come from the cache. The same tokens give the same bits in any batch. Raises `InvalidRequest`, and `RequestFailed` for
        one that failed while it ran.
        """
        if isinstance(texts, str) or not isinstance(texts, (list, tuple)) or not texts:
            raise InvalidRequest("texts", "must be a non-empty list of texts or of lists of token ids", "invalid_type")
        prompts, single = read_prompts(list(texts), self.tokenize)
        if single:
            raise InvalidRequest("texts", "must be a list of texts or of lists of token ids", "invalid_type")
        params = SamplingParams(max_tokens=0, temperature=0)
        submission = self._submission(prompts, params, cache_salt=cache_salt, pooling=pooling)
        vectors = []
        for output in collect(ChunkStream(self._loop, submission), len(prompts)):
            if output.embedding is None:
                raise RequestFailed(output.rid, output.error or "it was aborted")
            vectors.append(output.embedding)
        return vectors

    # ---------------------------------------------------------------- texts

    def encode_parts(
        self, parts: Sequence[tuple[str, bool]], *, add_special: bool = False, continues: bool | None = None
    ) -> list[int]:
        """Token ids of (text, data) ``parts`` read as one text; in those with ``data`` names of special tokens are characters.

        ``add_special``: they are a whole text, with the model's own beginning; otherwise they go on from another one, unless
        ``continues`` is False: then they begin a text that says itself what it begins with. Raises `InvalidRequest`.
        """
        return self.tokenizer.encode_parts(read_parts(parts), add_special=add_special, continues=continues)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of ``token_ids``, special tokens included."""
        return self.tokenizer.decode(token_ids)

    # ---------------------------------------------------------------- inside

    def _submission(
        self,
        prompts: list[list[int]],
        sampling: SamplingParams | Sequence[SamplingParams] | None,
        priority: int = 0,
        cache_salt: str | None = None,
        explain: bool = False,
        pooling: Pooling | None = None,
        heal: bool = False,
        hold_s: float | None = None,
    ) -> Submission:
        return Submission(
            [f"gen-{next(self._rids)}" for _ in prompts],
            prompts,
            read_sampling(sampling, len(prompts), self.default_sampling),
            priority,
            check_salt(cache_salt),
            explain,
            pooling,
            heal=heal,
            hold_s=hold_s,
        )

    def _hold_submission(self, prompt: Prompt, seconds: float, priority: int, cache_salt: str | None) -> Submission:
        params = SamplingParams(max_tokens=0, temperature=0)
        tokens = read_prompt(prompt, self.tokenize)
        return self._submission([tokens], params, priority, cache_salt, hold_s=seconds)


def _held(output: GenerationOutput) -> HoldOutput:
    if output.hold is None:
        raise RequestFailed(output.rid, output.error or "it was aborted")
    return HoldOutput(
        id=output.rid,
        held_tokens=output.hold.tokens,
        prompt_tokens=output.prompt_tokens,
        cached_tokens=output.cached_tokens,
        computed_tokens=output.hold.computed_tokens,
        expires_in_s=output.hold.expires_in_s,
        timings=output.timings,
    )
