"""The largest logits of some rows, where nobody asked for the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class TopLogits:
    """The k largest logits of each of n rows, the largest first, ties by the lowest id: int32 and float32 [n, k].

    Infinities are values like others. A row with a NaN among all its logits has id -1 and NaN everywhere.
    """

    ids: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
