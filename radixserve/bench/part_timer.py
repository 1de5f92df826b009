"""Where the time of a step goes, measured from outside: methods are replaced by timed ones for as long as it takes."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from radixserve.engine.core import EngineCore
from radixserve.native.library import NativeLibrary
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.runtime.native_runner import NativeModelRunner
from radixserve.runtime.plan_runner import PlanRunner
from radixserve.scheduler.plan import StepPlan

SCHEDULING, BATCH, FORWARD, HEAD, SAMPLING, TEXT = (
    "scheduling",
    "batch building",
    "forward",
    "head",
    "sampling",
    "detokenizing",
)
PARTS = (SCHEDULING, BATCH, FORWARD, HEAD, SAMPLING, TEXT)


class PartTimer:
    """Seconds by part; what runs inside another part is counted there and not in the outer one."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.plan: StepPlan | None = None
        self._inner: list[float] = []
        self._parts: list[str] = []

    def reset(self) -> None:
        """Before a step."""
        self.seconds.clear()
        self.plan = None

    @contextmanager
    def watching(self, core: EngineCore, runner: PlanRunner, library: NativeLibrary | None) -> Iterator[None]:
        """Time the parts of ``core``'s steps. ``library``: of the native path, where the kernels of the layers and of the head are told
        apart from what stands around them; on the torch path the head counts as sampling.
        """
        replaced: list[tuple[Any, str, Any]] = []

        def replace(
            owner: Any, name: str, part: str | Callable[[], str], take: Callable[[Any], None] | None = None
        ) -> None:
            inside = vars(owner).get(name)
            replaced.append((owner, name, inside))
            timed = self._timed(getattr(owner, name), part, take)
            setattr(owner, name, staticmethod(timed) if isinstance(owner, type) else timed)

        try:
            replace(core.scheduler, "schedule", SCHEDULING, self._keep_plan)
            replace(core.scheduler, "update", SCHEDULING)
            replace(core, "_chunks", TEXT)
            replace(ForwardBatch, "from_plan", BATCH)
            replace(runner, "forward", FORWARD)
            replace(runner, "_sample", SAMPLING)
            if library is not None:
                assert isinstance(runner, NativeModelRunner), "only these kernels are the library's"
                replace(runner.decoder, "flatten", BATCH)
                replace(runner.decoder, "run", BATCH)
                replace(library, "run", lambda: HEAD if SAMPLING in self._parts else FORWARD)
            yield
        finally:
            for owner, name, before in reversed(replaced):
                if before is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)

    def _keep_plan(self, plan: StepPlan | None) -> None:
        self.plan = plan

    def _timed(
        self, function: Callable[..., Any], part: str | Callable[[], str], take: Callable[[Any], None] | None
    ) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            name = part if isinstance(part, str) else part()
            self._inner.append(0.0)
            self._parts.append(name)
            began = time.perf_counter()
            try:
                result = function(*arguments, **options)
            finally:
                seconds = time.perf_counter() - began
                self._parts.pop()
                self.seconds[name] += seconds - self._inner.pop()
                if self._inner:
                    self._inner[-1] += seconds
            if take is not None:
                take(result)
            return result

        return timed
