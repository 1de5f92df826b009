"""A runner without a model: it keeps, for every slot, the hash of the token prefix that was written there.

It refuses to read a slot that does not hold exactly the prefix that the row's sequence has at that position, so any block that is
shared wrongly, freed too early, copied too short or written twice is caught at the row that reads it. The next token is a hash of what was read:
the same sequence gets the same token whatever the cache did.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from radixserve.messages import TokenLogprob
from radixserve.scheduler.plan import PlanRow, RowResult, StepPlan, StepResult

EMPTY = b"empty"


class StaleSlot(AssertionError):
    """A row would have read KV of another prefix."""


class FakeRunner:
    """``vocab_size`` bounds the tokens it draws; ``choose`` may override the token drawn for (row, sample index)."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        vocab_size: int = 50,
        choose: Callable[[PlanRow, int, int], int] | None = None,
    ) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.choose = choose
        self.slots: list[bytes] = [EMPTY] * (num_blocks * block_size)
        self.prefixes: dict[str, list[bytes]] = {}
        self.plans: list[StepPlan] = []
        self.seconds = 0.0

    def execute(self, plan: StepPlan) -> StepResult:
        """Copies, then all writes, then all reads, as a layer does."""
        self.plans.append(plan)
        size = self.block_size
        for source, target in plan.copies.tolist():
            self.slots[target * size : (target + 1) * size] = self.slots[source * size : (source + 1) * size]
        written: dict[int, str] = {}
        for row in plan.rows:
            for position, slot in enumerate(self._slots(row)):
                if position >= row.start:
                    assert slot not in written, f"{row.rid} and {written[slot]} write slot {slot} in one step"
                    written[slot] = row.rid
                    self.slots[slot] = b"written"
        pending = {row.rid: row for row in plan.rows}
        while pending:
            # A row may continue what another row of this step computes: resolve in order of dependency.
            done = [rid for rid, row in pending.items() if self._write(row)]
            if not done:
                row = next(iter(pending.values()))
                raise StaleSlot(f"step {plan.step}: {row.rid} reads a slot that nobody has written with its prefix")
            for rid in done:
                del pending[rid]
        return StepResult(plan.step, tuple(self._result(row) for row in plan.rows), self.seconds)

    def _slots(self, row: PlanRow) -> list[int]:
        positions = np.arange(row.end)
        return list((row.table[positions // self.block_size] * self.block_size + positions % self.block_size).tolist())

    def _write(self, row: PlanRow) -> bool:
        slots = self._slots(row)
        if any(self.slots[slot] == b"written" for slot in slots[: row.start]):
            return False
        state = self.slots[slots[row.start - 1]] if row.start else b""
        for token, slot in zip(row.tokens.tolist(), slots[row.start :], strict=True):
            state = hashlib.blake2b(state + token.to_bytes(4, "big"), digest_size=8).digest()
            self.slots[slot] = state
        return True

    def _result(self, row: PlanRow) -> RowResult:
        slots = self._slots(row)
        read = [self.slots[slot] for slot in slots]
        self.check(row, read)
        tokens = tuple(
            self.choose(row, index, len(read)) if self.choose else self.draw(read[-1], row, index)
            for index in range(row.first_sample, row.first_sample + row.num_samples)
        )
        wanted = row.prompt_logprob_targets
        prompt_logprobs = () if wanted is None else tuple(
            TokenLogprob(token, -self.score(read[row.prompt_logprob_start + offset]), 1)
            for offset, token in enumerate(wanted.tolist())
        )
        logprobs = tuple(TokenLogprob(token, -self.score(read[-1]), 1) for token in tokens)
        return RowResult(tokens, logprobs if row.sampling.logprobs is not None else (), prompt_logprobs)

    def check(self, row: PlanRow, read: list[bytes]) -> None:
        """Every slot the row reads must hold the prefix of the row's own sequence."""
        sequence = self.sequences[row.rid] if row.rid in self.sequences else None
        if sequence is None:
            return
        state = b""
        for position, token in enumerate(sequence[: row.end]):
            state = hashlib.blake2b(state + token.to_bytes(4, "big"), digest_size=8).digest()
            if read[position] != state:
                raise StaleSlot(f"{row.rid} read slot of position {position} with another prefix")

    sequences: dict[str, list[int]] = {}

    def draw(self, state: bytes, row: PlanRow, index: int) -> int:
        """The next token: a hash of everything read, the seed and the sample index."""
        seed = row.seed if row.sampling.temperature > 0 else 0
        sample = index if row.sampling.temperature > 0 else 0
        salted = state + f"{seed}/{sample}".encode()
        return int.from_bytes(hashlib.blake2b(salted, digest_size=4).digest(), "big") % self.vocab_size

    @staticmethod
    def score(state: bytes) -> float:
        """A number that depends on the whole prefix."""
        return int.from_bytes(state[:4], "big") / 2**32
