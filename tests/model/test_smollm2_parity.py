"""SmolLM2 against ``transformers`` on the same dequantized weights: twenty prompts, greedy text, logits and divergence."""

from __future__ import annotations

import dataclasses
import sys

import pytest
import torch

from radixserve.model.loader import LoadedModel
from radixserve.native.library import NativeLibrary
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.native_runner import NativeModelRunner
from radixserve.runtime.plan_runner import PlanRunner
from radixserve.scheduler.plan import StepPlan
from tests.model.transformers_model import transformers_model
from tests.native_kernels import needs_native
from tests.tiny_decoder import all_logits, plan_row

PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a",
    "def fibonacci(n):\n    ",
    "The three laws of thermodynamics state that",
    "To make a good cup of tea, first",
    "In 1969, the Apollo 11 mission",
    "SELECT name, age FROM users WHERE",
    "Dear Sir or Madam,\n\nI am writing to",
    "The quick brown fox jumps over",
    "Photosynthesis is the process by which",
    "Q: What is 12 times 12?\nA:",
    "Les enfants jouent dans le",
    '{"name": "Alice", "age":',
    "The main difference between TCP and UDP is",
    "She opened the door slowly and saw",
    "A list of prime numbers: 2, 3, 5,",
    "Shakespeare wrote",
    "import numpy as np\n\nx = np.",
    "The recipe calls for two cups of flour,",
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
)
NEW_TOKENS = 12
BLOCK = 16
BLOCKS_EACH = 4
KERNELS = pytest.mark.parametrize("kernels", [pytest.param("native", marks=needs_native), "torch"])


@dataclasses.dataclass(frozen=True)
class Reference:
    """For each prompt: its tokens followed by the greedy continuation, and the float32 logits of every token but the last."""

    sequences: list[list[int]]
    prompt_lengths: list[int]
    logits: list[torch.Tensor]


@pytest.fixture(scope="module")
def reference(smollm2: LoadedModel) -> Reference:
    model = transformers_model(smollm2.config, smollm2.weights)
    sequences, logits, lengths = [], [], []
    with torch.inference_mode():
        for prompt in PROMPTS:
            ids = torch.tensor([smollm2.tokenizer.encode(prompt)])
            whole = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
            )
            lengths.append(ids.shape[1])
            sequences.append(whole[0].tolist())
            logits.append(model(whole[:, :-1]).logits[0])
    return Reference(sequences, lengths, logits)


def make_runner(model: LoadedModel, kernels: str, kv_dtype: torch.dtype | None = None) -> PlanRunner:
    num_blocks = len(PROMPTS) * BLOCKS_EACH
    if kernels == "torch":
        return ModelRunner(model, num_blocks=num_blocks, block_size=BLOCK, kv_dtype=kv_dtype)
    return NativeModelRunner(
        model,
        NativeLibrary.load(),
        num_blocks=num_blocks,
        block_size=BLOCK,
        max_batch_tokens=1024,
        keep_blocks=kernels == "native, in the file's blocks",
        kv_dtype=kv_dtype,
    )


def run(
    model: LoadedModel, reference: Reference, kernels: str, kv_dtype: torch.dtype | None = None
) -> list[torch.Tensor]:
    """Our logits for the reference's sequences, all in one batch."""
    runner = make_runner(model, kernels, kv_dtype)
    rows = [
        plan_row(tokens[:-1], range(index * BLOCKS_EACH, index * BLOCKS_EACH + -(-(len(tokens) - 1) // BLOCK)))
        for index, tokens in enumerate(reference.sequences)
    ]
    return all_logits(runner, rows)


def float32(model: LoadedModel) -> LoadedModel:
    return dataclasses.replace(model, weights={name: tensor.float() for name, tensor in model.weights.items()})


@KERNELS
def test_float32_logits_and_greedy_text(smollm2: LoadedModel, reference: Reference, kernels: str) -> None:
    model = float32(smollm2)
    for ours, theirs in zip(run(model, reference, kernels), reference.logits, strict=True):
        assert (ours - theirs).abs().max() < 1e-3
    runner = make_runner(model, kernels)
    tables = [range(index * BLOCKS_EACH, (index + 1) * BLOCKS_EACH) for index in range(len(PROMPTS))]
    texts = [tokens[:length] for tokens, length in zip(reference.sequences, reference.prompt_lengths, strict=True)]
    rows = tuple(plan_row(text, table) for text, table in zip(texts, tables, strict=True))
    for step in range(NEW_TOKENS):
        results = runner.execute(StepPlan(step, rows)).rows
        texts = [[*text, *result.token_ids] for text, result in zip(texts, results, strict=True)]
        rows = tuple(plan_row(text[-1:], table, start=len(text) - 1) for text, table in zip(texts, tables, strict=True))
    assert texts == reference.sequences


def divergence(logits: list[torch.Tensor], reference: Reference) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of every token: KL(reference || logits), what the choice of ``logits`` loses in log-probability, whether it is the same."""
    kl, lost, same = [], [], []
    for ours, theirs in zip(logits, reference.logits, strict=True):
        log_p, log_q = theirs.double().log_softmax(-1), ours.double().log_softmax(-1)
        kl.append((log_p.exp() * (log_p - log_q)).sum(-1))
        best, chosen = theirs.argmax(-1, keepdim=True), ours.argmax(-1, keepdim=True)
        lost.append((log_p.gather(1, best) - log_p.gather(1, chosen)).flatten())
        same.append((best == chosen).flatten())
    return torch.cat(kl), torch.cat(lost), torch.cat(same)


@KERNELS
def test_bfloat16_stays_close(smollm2: LoadedModel, reference: Reference, kernels: str) -> None:
    """KL(float32 || bfloat16) per token below 1e-3 on average; where the greedy choice differs it was a near tie."""
    kl, lost, _ = divergence(run(smollm2, reference, kernels), reference)
    assert kl.mean() < 1e-3 and kl.max() < 1e-2
    assert lost.max() < 0.15


@needs_native
def test_the_files_own_blocks_stay_close(smollm2: LoadedModel, reference: Reference) -> None:
    """What is left of the reference is the rounding of activations to int8."""
    kl, lost, same = divergence(run(smollm2, reference, "native, in the file's blocks"), reference)
    assert kl.mean() < 3e-3 and kl.max() < 3e-2
    assert same.double().mean() > 0.96 and lost.max() < 0.3


@KERNELS
def test_int8_kv_stays_close(smollm2: LoadedModel, reference: Reference, kernels: str) -> None:
    """KL(bf16 KV || int8 KV) per token, and against float32; where the greedy choice differs it was a near tie."""
    rounded = run(smollm2, reference, kernels, torch.int8)
    plain = dataclasses.replace(reference, logits=run(smollm2, reference, kernels))
    for name, truth, bound in (("bf16 KV", plain, 2e-3), ("float32", reference, 3e-3)):
        kl, lost, same = divergence(rounded, truth)
        sys.stdout.write(  # pytest -rP shows it
            f"int8 KV against {name}, {kernels}, {len(kl)} tokens: KL mean {kl.mean():.5f}, max {kl.max():.4f}; "
            f"same choice {same.double().mean():.3f}\n"
        )
        assert kl.mean() < bound and kl.max() < 3e-2
        assert same.double().mean() > 0.96 and lost.max() < 0.3
