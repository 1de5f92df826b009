"""The engine: the step loop, its thread, and the offline API."""

import os

# libgomp spins for a long time between two parallel regions by default; beside any other busy process that makes a step
# many times slower. It reads this once, when torch loads it, and so it is set before anything here imports torch.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
