"""What the radix tree costs where it brings nothing: its share of the wall time of a run without any shared prefix.

    python bench/tree_share.py [--model smollm2] [--requests 16] [--prompt 512] [--output 32] [--out FILE.json]

Every public method of `PrefixCache` that a step calls is timed (nested calls once), and so are `schedule` and `update` as a whole.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from radixserve import Engine, SamplingParams
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.scheduler.scheduler import Scheduler


class Stopwatch:
    """Seconds spent inside the functions it wraps; a wrapped function called by another one is not counted twice."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0
        self._depth = 0

    def wrap(self, owner: type, name: str) -> None:
        """Replace ``owner.name`` by a timed one."""
        function: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            self._depth += 1
            began = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.seconds += time.perf_counter() - began
                    self.calls += 1

        setattr(owner, name, timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of each prompt")
    parser.add_argument("--output", type=int, default=32, help="tokens drawn for each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    tree, scheduling = Stopwatch(), Stopwatch()
    for name, value in vars(PrefixCache).items():
        if callable(value) and not name.startswith(("_", "check")):
            tree.wrap(PrefixCache, name)
    for name in ("schedule", "update"):
        scheduling.wrap(Scheduler, name)
    rng = random.Random(arguments.seed)
    with Engine(arguments.model) as engine:
        vocab = engine.model_config.vocab_size
        prompts = [[rng.randrange(vocab) for _ in range(arguments.prompt)] for _ in range(arguments.requests)]
        params = SamplingParams(temperature=0, max_tokens=arguments.output, ignore_eos=True)
        engine.generate([rng.randrange(vocab) for _ in range(32)], params)
        tree.seconds = scheduling.seconds = 0.0
        before = engine.cache_stats()["scheduler"]["steps"]
        began = time.perf_counter()
        outputs = engine.generate(prompts, params)
        wall = time.perf_counter() - began
        steps = engine.cache_stats()["scheduler"]["steps"] - before
    result = {
        "requests": arguments.requests,
        "prompt_tokens": arguments.prompt,
        "output_tokens": arguments.output,
        "cached_tokens": sum(output.cached_tokens for output in outputs),
        "steps": steps,
        "wall_s": round(wall, 3),
        "tree_ms": round(tree.seconds * 1e3, 2),
        "tree_share_percent": round(100 * tree.seconds / wall, 4),
        "schedule_and_update_ms_per_step": round(scheduling.seconds * 1e3 / steps, 3),
    }
    print(json.dumps(result, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
