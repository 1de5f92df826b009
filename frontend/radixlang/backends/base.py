"""What the language needs of a model: the seam between programs and whatever runs them.

Two kinds of backends. A *token-exact* one (`TokenBackend`: the in-process engine, radixserve over HTTP, the fake) speaks
token ids: what was generated goes back as the very tokens that it was, so no text is ever tokenized twice and every
prefix is found in the cache to the token. A *text* one (`TextBackend`: any OpenAI-compatible server) speaks texts and messages.
The interpreter knows which by the attribute ``token_exact``.

Everything is asynchronous, and may be used from several event loops one after the other.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from radixlang.constraints import Constraint
from radixlang.sampling import Sampling

# ``free``: what a program wrote outside of roles; names of special tokens in it are those tokens. ``content``: what it wrote
# inside a role; such names are just characters. ``template``: what the model's chat template puts around roles.
TextKind = Literal["free", "content", "template"]

Reason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text that has no tokens yet. Neighbouring pieces are tokenized together."""

    text: str
    kind: TextKind


@dataclass(frozen=True, slots=True)
class Message:
    """A finished message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class RoleMarks:
    """What a chat template writes before and after the content of a message.

    ``written``: for ``assistant``, what it writes before an answer that is given and not asked for, where that is something else
    than ``begin`` (a template that opens a block of reasoning, say); None where it is the same.
    """

    begin: str
    end: str
    written: str | None = None


@dataclass(frozen=True, slots=True)
class TokenScore:
    """One token and how likely it was; ``forced``: a constraint left no other choice."""

    token_id: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and seconds of one call to the model.

    ``prompt``: tokens of the prompt. ``cached``: of those, found in the cache. ``computed``: prompt tokens that had to be
    computed. ``generated``: output tokens of all samples, ``forced`` of them without a choice. ``wall_s`` from sending to the
    end, ``queue_s`` waiting for a place in the batch, ``first_token_s`` until the first token. None where a backend does not tell.
    """

    prompt: int = 0
    cached: int | None = None
    computed: int | None = None
    generated: int = 0
    forced: int | None = None
    wall_s: float = 0.0
    queue_s: float | None = None
    first_token_s: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished output.

    ``text``: without the stop that ended it. ``token_ids``: all output tokens as generated. ``kept``: how many of them, from the
    first, lie wholly inside ``text``; ``rest``: what of ``text`` is left after those (a stop string that began inside a
    token), to be tokenized anew with whatever follows. Text backends leave both lists empty and ``rest`` the whole text.
    ``matched``: the stop string, pattern or token.
    """

    text: str
    finish_reason: Reason
    token_ids: tuple[int, ...] = ()
    kept: int = 0
    rest: str = ""
    matched: str | int | None = None
    logprobs: tuple[TokenScore, ...] | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """What one call brought. ``healed``: tokens at the prompt's end that the output's first tokens replace (token healing);
    ``Sample.token_ids`` then begin with the replacements, and texts leave out what the prompt already had.
    """

    samples: tuple[Sample, ...]
    usage: Usage
    healed: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """New text of sample ``index`` while it is made; ``output`` comes with the last piece of a call."""

    index: int
    text: str
    output: Output | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One generation.

    ``constraint``: what the output must look like. ``heal``: the prompt ends in text that a program wrote, so its last
    tokens may be replaced by others that spell the same and more. ``priority``: higher goes first. ``stream``: pieces are
    wanted as they come; otherwise only the last one, with the output, need come.
    """

    sampling: Sampling
    constraint: Constraint | None = None
    heal: bool = False
    priority: int = 0
    stream: bool = False
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Continuations:
    """The scores of several continuations of one prompt.

    ``logprobs[i]``: of the tokens ``token_ids[i]`` of continuation ``i``, each given the prompt and those before it.
    """

    token_ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class Hold:
    """A prefix that the engine keeps in its cache for a while; ``held`` tokens of it (0: the engine holds nothing).

    ``usage``: what computing it cost. ``seconds``: for how long it is kept, where that may be less than was asked for.
    """

    id: str
    held: int
    usage: Usage = field(default_factory=Usage)
    seconds: float | None = None


class Backend(Protocol):
    """What both kinds have in common."""

    token_exact: ClassVar[bool]

    @property
    def name(self) -> str:
        """What errors and reports call it."""

    async def aclose(self) -> None:
        """Let connections and processes of its own go; safe to call twice."""

    async def info(self) -> dict[str, Any]:
        """Facts about the model: at least ``model`` and ``context_length`` (None where unknown)."""

    async def flush(self) -> None:
        """Drop what is cached and not in use. Raises `Unsupported` where there is no such thing."""


class TokenBackend(Backend, Protocol):
    """A model that takes and gives token ids."""

    async def encode(self, parts: Sequence[Text], *, first: bool) -> list[int]:
        """The tokens of ``parts`` read as one text. ``first``: they begin a sequence, so the model's own begin token is
        put before them where it has one.
        """

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones included."""

    async def role(self, role: str, earlier: Sequence[Message]) -> RoleMarks:
        """What the template writes around the next message, of ``role``, after ``earlier``.

        For ``assistant`` the begin is what asks for an answer. Raises `Unsupported` without a template, and `Refused` for a
        role that it does not have.
        """

    def generate(self, token_ids: Sequence[int], call: Call) -> AsyncGenerator[Piece, None]:
        """Continue ``token_ids``. Closing the generator early ends the generation."""

    async def score(
        self, token_ids: Sequence[int], continuations: Sequence[Sequence[int]], *, priority: int = 0
    ) -> Continuations:
        """How likely each continuation (token ids, not empty) is after ``token_ids``; empty ``token_ids`` ask for the
        unconditional likelihood: after the begin (or end) token alone. Shared beginnings are computed once.
        """

    async def hold(self, token_ids: Sequence[int], *, seconds: float, priority: int = 0) -> Hold:
        """Compute the prefix if it is not cached, and keep it for at most ``seconds``. A hint: under pressure, or where
        quotas say so, less is held or nothing, and nothing is wrong then. Cancelling it gives up what is under way.
        """

    async def release(self, holds: Sequence[str]) -> None:
        """End holds before their time; unknown ones are left alone."""


class TextBackend(Backend, Protocol):
    """A model that takes texts and messages."""

    def complete(self, prompt: str, call: Call) -> AsyncGenerator[Piece, None]:
        """Continue a text. Raises `Unsupported` where the server has no completions."""

    def answer(self, messages: Sequence[Message], call: Call) -> AsyncGenerator[Piece, None]:
        """Answer a conversation, which ends with a message that is not the assistant's."""

    async def score_texts(self, prompt: str, continuations: Sequence[str]) -> Continuations:
        """How likely each continuation is after ``prompt``. Raises `Unsupported` where the server echoes no logprobs."""
