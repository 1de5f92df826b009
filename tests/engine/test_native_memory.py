"""How much memory a loaded engine takes at its worst, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Beside weights, KV and the pages of libraries, which are the page cache's: the interpreter with torch, the tokenizer, activations,
# what one matrix needs while it is packed, the logprobs of a long prompt. Less than a second copy of the weights in blocks.
SPARE = 240 << 20

PROGRAM = """
import json, pathlib, sys
from radixserve import Engine, SamplingParams
with Engine("smollm2", num_blocks=256, weights=sys.argv[1]) as engine:
    engine.generate([[7] * 900, [8] * 900], SamplingParams(temperature=0, max_tokens=3))
    engine.generate([list(range(1000, 3000))], SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=5))
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    peak = 1024 * (int(status["VmHWM"].split()[0]) - int(status["RssFile"].split()[0]))
    print(json.dumps({**engine.runner_info, "peak": peak}))
"""


@pytest.mark.parametrize("weights", ["native", "bf16"])
def test_nothing_is_held_twice(weights: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, weights], capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["weights"] == ("native" if weights == "native" else "bfloat16")
    assert facts["peak"] < facts["weight_bytes"] + facts["kv_bytes"] + SPARE
