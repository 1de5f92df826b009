"""Tiny models of several tokenizers and templates, and the backends that run them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from radixlang.backends.engine import EngineBackend
from radixlang.backends.http import RuntimeEndpoint
from radixserve import Engine
from radixserve.model.chat_template import ChatTemplate
from radixserve.model.generation_config import GenerationDefaults
from radixserve.model.loader import LoadedModel
from radixserve.model.tokenizer import Tokenizer
from tests.radixlang.backends.live import serve
from tests.tiny_decoder import tiny_decoder


def model_of(tokenizer: Tokenizer, template: str | None, *, context_length: int = 4096) -> LoadedModel:
    """A random decoder that reads with ``tokenizer``."""
    decoder = tiny_decoder(vocab_size=tokenizer.vocab_size, context_length=context_length)
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    return LoadedModel(
        name="tiny",
        source="made in code",
        config=decoder.config,
        weights=decoder.weights,
        tokenizer=tokenizer,
        chat_template=None if template is None else ChatTemplate(template, names),
        generation=GenerationDefaults(eos_ids=tokenizer.eos_ids),
        fingerprint=f"tiny-{tokenizer.vocab_size}",
    )


@dataclass(frozen=True)
class Served:
    """An engine, and the URL of a server of it."""

    engine: Engine
    url: str


@dataclass(frozen=True)
class Both(Served):
    """One engine behind two backends."""

    local: EngineBackend
    remote: RuntimeEndpoint

    def of(self, kind: str) -> EngineBackend | RuntimeEndpoint:
        """The backend of that kind."""
        return self.local if kind == "engine" else self.remote


@contextmanager
def served(model: LoadedModel, **options: int) -> Iterator[Served]:
    """An engine and a server of a model, until the end of the context."""
    engine = Engine.from_model(model, **{"kv_memory_mb": 16, **options})
    with serve(engine) as url:
        yield Served(engine, url)


@asynccontextmanager
async def both(server: Served) -> AsyncIterator[Both]:
    """Both backends, for one event loop."""
    remote = RuntimeEndpoint(server.url)
    yield Both(server.engine, server.url, EngineBackend(server.engine), remote)
    await remote.aclose()
