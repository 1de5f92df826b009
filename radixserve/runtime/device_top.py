"""The largest logits of each row, found on a GPU.

FlashInfer's kernels that *draw* tokens are not used: they key their random numbers by (seed, offset, place in the batch),
so a seeded draw would depend on a request's neighbours, and their top-k keeps all of several equal logits at its border. Its
selection, told to prefer the lower index, is exact, and what it selects is drawn from by `Sampler` as everywhere else.
"""

from __future__ import annotations

import numpy as np
import torch

from radixserve.model.flashinfer_library import flashinfer
from radixserve.runtime.top_logits import TopLogits


def largest_logits(logits: torch.Tensor, count: int) -> TopLogits:
    """The ``count`` (at most the vocabulary) largest of each row of float32 ``logits`` [n, V], as `TopLogits` has them."""
    library = flashinfer()
    # -0 equals 0 for the sampler, but not for a selection by bits; the sum turns it into 0.
    values, ids = library.top_k(
        logits + 0.0, count, sorted=True, deterministic=True, tie_break=library.TopKTieBreak.SMALL
    )
    broken = torch.isnan(logits).any(1)
    found, places, bad = (each.cpu().numpy() for each in (values, ids, broken))
    # Sorted once more, by value and then by id: the order among equal values is nowhere promised.
    order = np.lexsort((places, -found))
    found, places = np.take_along_axis(found, order, 1), np.take_along_axis(places, order, 1).astype(np.int32)
    found[bad], places[bad] = np.nan, -1
    return TopLogits(ids=places, values=found)
