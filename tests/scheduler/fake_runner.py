"""A runner without a model: every slot holds a token and the hash of the whole prefix up to and with it.

It refuses to read a slot that does not continue the slots before it, so a block that is shared wrongly, freed too
early, copied too short or written twice shows at the row that reads it. The next token is a hash of what was read: a
sequence gets the same tokens whatever the cache did. Tables are read when the step is executed, from the plan alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from radixserve.messages import SamplingParams, TokenLogprob
from radixserve.scheduler.plan import PlanRow, RowResult, StepPlan, StepResult

Slot = tuple[int, int]
"""(token, hash of the prefix that ends with it)."""

POISON: Slot = (-1, -1)
"""What a freed block holds; to read it is an error of the scheduler or the cache."""

NOT_FINITE: Slot = (-2, -2)
"""What a row leaves behind whose logits are not finite; who reads it and wants logits fails as well."""


class StaleSlot(AssertionError):
    """A row would have read KV that is not of its own prefix."""


class StepFailed(Exception):
    """The forward pass raised."""


def extend_state(state: int, token: int) -> int:
    """The hash of a prefix and one more token; the empty prefix is 0."""
    return hash((state, token))


def score(state: int, token: int) -> float:
    """The logprob of ``token`` after a prefix."""
    return -float(hash((token, state)) % 2**20) / 2**16


def draw(
    state: int,
    sampling: SamplingParams,
    seed: int,
    index: int,
    num_output: int,
    vocab_size: int,
    eos_ids: Sequence[int],
) -> int:
    """Output token ``num_output`` of sample ``index``: greedy ones depend on the prefix alone; none ends before ``min_tokens``."""
    key = (state,) if sampling.temperature == 0 else (state, seed, index)
    token = hash(key) % vocab_size
    banned = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(eos_ids))
    while num_output < sampling.min_tokens and token in banned:
        token = (token + 1) % vocab_size
    return token


class FakeRunner:
    """``fault(plan)`` may raise, after the step has written half of what it writes; ``error(row)`` fails one row.

    ``seconds(plan)``: the time a step is said to take. ``plans``: all that were executed, failed ones included.
    """

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int, eos_ids: Sequence[int] = ()) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.eos_ids = eos_ids
        self.slots: list[Slot] = [POISON] * (num_blocks * block_size)
        self.plans: list[StepPlan] = []
        self.fault: Callable[[StepPlan], None] = lambda plan: None
        self.error: Callable[[PlanRow], str | None] = lambda row: None
        self.seconds: Callable[[StepPlan], float] = lambda plan: 0.0

    def poison(self, blocks: Sequence[int]) -> None:
        """What a freed block held is gone."""
        size = self.block_size
        for block in blocks:
            self.slots[block * size : (block + 1) * size] = [POISON] * size

    def execute(self, plan: StepPlan) -> StepResult:
        """Copies, then all writes, then all reads, as a layer does. A row may continue what rows before it write."""
        assert not plan.is_open, "every token is known when a step runs"
        self.plans.append(plan)
        places = [self._places(row) for row in plan.rows]
        written = [place for row, slots in zip(plan.rows, places, strict=True) for place in slots[row.start :]]
        assert len(written) == len(set(written)), f"two rows of step {plan.step} write one slot"
        self._copy(plan)
        for place in written:
            self.slots[place] = POISON
        self.fault(plan)
        for row, slots in zip(plan.rows, places, strict=True):
            self._write(row, slots)
        rows = [self._read(row, slots) for row, slots in zip(plan.rows, places, strict=True)]
        for row, slots, result in zip(plan.rows, places, rows, strict=True):
            if result.error is not None:
                self.slots[slots[row.end - 1]] = NOT_FINITE
        return StepResult(plan.step, tuple(rows), self.seconds(plan))

    def _places(self, row: PlanRow) -> list[int]:
        size, table = self.block_size, row.table.tolist()
        assert len(table) == -(-row.end // size), f"{row.rid}: a table of {len(table)} blocks for {row.end} tokens"
        return [table[position // size] * size + position % size for position in range(row.end)]

    def _copy(self, plan: StepPlan) -> None:
        size, pairs = self.block_size, plan.copies.tolist()
        targets = [target for _, target in pairs]
        assert len(targets) == len(set(targets)), "two copies go to one block"
        assert not {source for source, _ in pairs} & set(targets), "a copy reads what another writes"
        for source, target in pairs:
            self.slots[target * size : (target + 1) * size] = self.slots[source * size : (source + 1) * size]

    def _write(self, row: PlanRow, places: list[int]) -> None:
        state = self.slots[places[row.start - 1]][1] if row.start else 0
        for token, place in zip(row.tokens.tolist(), places[row.start :], strict=True):
            state = extend_state(state, token)
            self.slots[place] = (token, state)

    def _read(self, row: PlanRow, places: list[int]) -> RowResult:
        states: list[int] = []
        state, finite = 0, True
        for position, place in enumerate(places):
            token, held = self.slots[place]
            finite = finite and (token, held) != NOT_FINITE
            state = extend_state(state, token)
            if finite and held != state:
                raise StaleSlot(f"{row.rid} reads KV of another prefix at position {position}")
            states.append(state)
        if row.num_samples and (error := "not finite" if not finite else self.error(row)):
            return RowResult(error=error)
        return self._sample(row, states)

    def _sample(self, row: PlanRow, states: list[int]) -> RowResult:
        tokens = tuple(
            draw(states[-1], row.sampling, row.seed, index, row.end - row.num_prompt, self.vocab_size, self.eos_ids)
            for index in range(row.first_sample, row.first_sample + row.num_samples)
        )
        wanted = row.prompt_logprob_targets
        prompt_logprobs = tuple(
            TokenLogprob(token, score(states[row.prompt_logprob_start + offset], token), 1)
            for offset, token in enumerate(wanted.tolist() if wanted is not None else ())
        )
        logprobs = tuple(TokenLogprob(token, score(states[-1], token), 1) for token in tokens)
        forced = row.forced_targets
        assert forced is None or row.start <= row.forced_start <= row.end - len(forced), (
            "logits of tokens that were not computed"
        )
        return RowResult(
            tokens,
            logprobs if row.sampling.logprobs is not None else (),
            prompt_logprobs,
            forced_logprobs=tuple(
                TokenLogprob(token, score(states[row.forced_start + offset], token), 1, forced=True)
                for offset, token in enumerate(forced.tolist() if forced is not None else ())
            ),
        )
