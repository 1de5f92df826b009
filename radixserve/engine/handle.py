"""An engine as something that is opened, asked about itself, and closed. What its model can do is in `radixserve.engine.offline`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from radixserve.chat.format import ChatFormat
from radixserve.config import EngineConfig
from radixserve.engine.assembly import assemble
from radixserve.engine.intake import check_salt
from radixserve.engine.local_client import LocalClient
from radixserve.engine.loop import EngineLoop
from radixserve.messages import Explanation, SamplingParams

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from radixserve.engine.client import EngineInfo
    from radixserve.model.config import ModelConfig
    from radixserve.model.loader import LoadedModel
    from radixserve.model.text import TextModel
    from radixserve.model.tokenizer import Tokenizer

Prompt = str | list[int]


class EngineHandle:
    """A loaded model and the loop that steps it, from construction to `close`."""

    def __init__(self, model: str = "smollm2", **options: Any) -> None:
        from radixserve.model.loader import load_model
        from radixserve.runtime.device import require_device

        config = EngineConfig.from_options(model=model, **options)
        require_device(config.model.device, config.model.tensor_parallel_size)  # before anybody waits for weights
        self._start(load_model(config.model.model, dtype=_torch_dtype(config.model.dtype)), config)

    @classmethod
    def from_model(cls, model: LoadedModel, **options: Any) -> Self:
        """An engine on a model that is already loaded.

        ``options`` as for the constructor, ``dtype`` is the model's own.
        """
        from radixserve.model.gguf_weights import placement

        dtype, _ = placement(model.weights)
        config = EngineConfig.from_options(**{"dtype": str(dtype).removeprefix("torch."), **options})
        engine = cls.__new__(cls)
        engine._start(model, config)
        return engine

    @classmethod
    def on_loop(cls, loop: EngineLoop, info: EngineInfo, config: EngineConfig, text: TextModel) -> Self:
        """An engine over a core that ``loop`` runs, whatever computes for it; ``text``: how its model reads and writes.

        It has no ``model_config``.
        """
        engine = cls.__new__(cls)
        engine._open(loop, info, config, text)
        return engine

    def _start(self, model: LoadedModel, config: EngineConfig) -> None:
        assembly = assemble(model, config)
        self.model_config: ModelConfig = model.config
        self._open(assembly.run_by(EngineLoop(assembly.core)), assembly.info, assembly.core.config, model)

    def _open(self, loop: EngineLoop, info: EngineInfo, config: EngineConfig, text: TextModel | LoadedModel) -> None:
        self.info = info
        self.config = config
        self.tokenizer: Tokenizer = text.tokenizer
        self.chat_format = ChatFormat(text.chat_template, text.tokenizer)
        self._rids = itertools.count()
        self._loop = loop

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything that runs and give threads back. Calls after it raise `EngineClosed`."""
        self._loop.close()

    @property
    def default_sampling(self) -> SamplingParams:
        """The sampling defaults of the model's own files (``generation_config.json``)."""
        return self.info.default_sampling

    @property
    def runner_info(self) -> dict[str, str | int]:
        """Which kernels run, in what arithmetic, and sizes in bytes."""
        return self.info.runner

    @property
    def broken_promises(self) -> list[str]:
        """Why bits may depend on the batch on this machine; empty if they cannot."""
        return self.info.broken_promises

    def client(self) -> LocalClient:
        """This engine as a server sees one; closing the client closes the engine."""
        return LocalClient(self._loop, self.info)

    # ---------------------------------------------------------------- questions

    def tokenize(self, text: str) -> list[int]:
        """Token ids of ``text`` as prompts are seen: with the model's own beginning of text, where it has one."""
        return self.tokenizer.encode(text, add_special=True)

    def abort(self, rid: str) -> None:
        """End a generation; unknown and finished ones are left alone. Its stream gives one last chunk."""
        self._loop.call(lambda core: core.abort(rid)).result()

    def cache_stats(self) -> dict[str, Any]:
        """Gauges and counters of cache and scheduler."""
        return self._loop.call(lambda core: core.stats()).result()

    def explain(self, prompt: Prompt, *, cache_salt: str | None = None) -> Explanation:
        """Why ``prompt`` would not hit more of the cache than it would now."""
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else prompt
        salt = check_salt(cache_salt)
        return self._loop.call(lambda core: core.explain(tokens, salt=salt, see_all=True)).result()

    def flush_cache(self) -> int:
        """Drop all KV that no running request uses; returns the number of blocks."""
        return self._loop.call(lambda core: core.flush()).result()

    def check(self) -> None:
        """Recount the cache's books from scratch; raises `CacheInconsistent` listing every difference."""
        self._loop.call(lambda core: core.cache.check()).result()


def _torch_dtype(name: str) -> Any:
    import torch

    return getattr(torch, name)
