"""Everything that only a GPU can show, in one command and eight minutes: parity first, then speed.

    python -m bench.gpu_check [--device cuda|cpu] [--small] [--only NAME ...] [--budget SECONDS] [--out FILE.json]

Checks run one after the other in a process of their own, each with a limit of time. One that fails, hangs or breaks the device for
its process stops no other: what is left goes to a fresh process. The exit code is 0 if all that this device can show was shown, 1
if a check failed, ran out of time, or was not reached.

On a machine without a GPU, ``--device cpu --small`` runs the same checks over the torch path, to see that the script itself works.
A bare machine with a GPU needs what `bench.gpu_bundle` carries there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

from bench.gpu_bed import Bed, NotHere
from bench.gpu_modules import NotBuilt, modules, prepare, told
from bench.gpu_parity import MORE_PARITY, PARITY
from bench.gpu_speed import SPEED, summary

TOTAL_SECONDS = 470
# Until a fresh process has loaded torch and FlashInfer.
START_SECONDS = 60
MARK = "gpu-check: "
PASSED, FAILED, NOT_HERE, NOT_RUN = "passed", "failed", "not here", "not run"


@dataclass(frozen=True, slots=True)
class Check:
    """``seconds``: at most."""

    name: str
    seconds: float
    run: Callable[[Bed], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """``status``: passed, failed, not here (this device has nothing to check), not run. ``data``: what was found; ``reason``: why not."""

    name: str
    status: str
    seconds: float = 0.0
    data: dict[str, Any] = field(default_factory=dict)
    reason: str = ""


def all_checks() -> dict[str, Check]:
    """In their order: what is there, parity of the served model, speed, parity of what it does without."""
    groups = {"modules": (60.0, modules), **PARITY, **SPEED, **MORE_PARITY}
    return {name: Check(name, seconds, run) for name, (seconds, run) in groups.items()}


def work(bed: Bed, checks: Sequence[Check], out: IO[str]) -> None:
    """Run checks here and tell of each that it begins, and its outcome, as a marked line of JSON."""
    import torch

    def tell(message: dict[str, Any]) -> None:
        out.write(f"{MARK}{json.dumps(message)}\n")
        out.flush()

    for check in checks:
        tell({"begins": check.name})
        began = time.perf_counter()
        try:
            if bed.on_gpu:
                prepare(check.name)
            with torch.inference_mode():
                found = Outcome(check.name, PASSED, data=check.run(bed))
        except NotHere as reason:
            found = Outcome(check.name, NOT_HERE, reason=str(reason))
        except NotBuilt as reason:
            found = Outcome(check.name, NOT_RUN, reason=str(reason))
        except Exception as error:
            told = traceback.format_exc(limit=-4)
            found = Outcome(
                check.name, FAILED, data={"traceback": told}, reason=f"{type(error).__name__}: {error}"[:500]
            )
        tell({"outcome": {**asdict(found), "seconds": time.perf_counter() - began}})


class Worker:
    """A process that runs the checks of ``command`` and is watched from here."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def next(self, seconds: float) -> dict[str, Any] | None:
        """What it tells next; None when it is gone. Raises `queue.Empty` where nothing comes for so long."""
        return self._lines.get(timeout=max(0.0, seconds))

    def end(self) -> str:
        """Kill it if it still runs. How it ended."""
        if self._process.poll() is None and self._reader.is_alive():
            self._process.kill()
        return f"exit code {self._process.wait()}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                self._lines.put(json.loads(line[len(MARK) :]))
            else:
                sys.stderr.write(line)
        self._lines.put(None)


def watch(
    names: Sequence[str],
    seconds: dict[str, float],
    start: Callable[[Sequence[str]], Worker],
    budget: float,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Outcome]:
    """Outcomes of all ``names``, in order; ``start``: a worker for those that are left. After ``budget`` seconds none begins."""
    deadline = clock() + budget
    left = list(names)
    while left and clock() < deadline:
        worker = start(left)
        yield from _watch_one(worker, left, seconds, deadline, clock)
        worker.end()
    yield from (Outcome(name, NOT_RUN, reason="no time was left") for name in left)


def _watch_one(
    worker: Worker, left: list[str], seconds: dict[str, float], deadline: float, clock: Callable[[], float]
) -> Iterator[Outcome]:
    """Outcomes of one worker; takes what is done off ``left``. Ends where a fresh one is needed, or the budget is spent."""
    while left:
        running, limit = None, min(START_SECONDS, deadline - clock())
        began = clock()
        try:
            message = worker.next(limit)
            if message is not None and "begins" in message:
                running, began = message["begins"], clock()
                limit = min(seconds[running], deadline - began)
                message = worker.next(limit)
        except queue.Empty:
            worker.end()
            name = left.pop(0)
            yield Outcome(
                name, FAILED, clock() - began, reason=f"{'took' if running else 'did not begin in'} {limit:.0f} seconds"
            )
            return
        if message is None:
            yield Outcome(left.pop(0), FAILED, clock() - began, reason=f"its process ended: {worker.end()}")
            return
        found = Outcome(**message["outcome"])
        assert found.name == left.pop(0), "outcomes come in order"
        yield found
        if found.status == FAILED or clock() >= deadline:
            # An illegal access breaks the device for its whole process.
            return


def machine(bed: Bed) -> dict[str, Any]:
    """What this is checked on."""
    import torch

    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": str(bed.device),
        "small": bed.small,
    }
    try:
        found["flashinfer"] = version("flashinfer-python")
    except PackageNotFoundError:
        found["flashinfer"] = None
    if bed.on_gpu:
        properties = torch.cuda.get_device_properties(bed.device)
        found |= {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
        }
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    checks = all_checks()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU; the numbers mean nothing")
    parser.add_argument("--only", nargs="+", choices=list(checks), metavar="NAME", help="only these checks")
    parser.add_argument("--budget", type=float, default=TOTAL_SECONDS, help="seconds after which no check begins")
    parser.add_argument("--out", type=Path, help="results as JSON")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    import torch

    bed = Bed(torch.device(options.device), options.small)
    if options.device == "cpu" and not options.small:
        parser.error("a CPU is checked with --small")
    names = [name for name in checks if not options.only or name in options.only]
    if options.worker:
        # Without CUTLASS's own compiler FlashInfer has its norms in CUDA, which is what is prebuilt.
        os.environ.setdefault("FLASHINFER_USE_CUDA_NORM", "1")
        work(bed, [checks[name] for name in names], sys.stdout)
        return 0
    began = time.monotonic()
    # A CPU of another load takes as long as it takes; there the limits are not what is shown.
    seconds = {name: checks[name].seconds * (1 if bed.on_gpu else 10) for name in names}
    command = [sys.executable, "-m", "bench.gpu_check", "--worker", "--device", options.device]
    command += ["--small"] if options.small else []
    outcomes = []
    for found in watch(names, seconds, lambda left: Worker([*command, "--only", *left]), options.budget):
        outcomes.append(found)
        print(f"{time.monotonic() - began:5.0f} s  {found.name}: {found.status} {found.reason}".rstrip(), flush=True)
    results = {found.name: found.data for found in outcomes if found.status == PASSED}
    if "modules" in results:
        print(told(results["modules"]))
    print("\n".join(summary(results)))
    if options.out:
        report = {
            "machine": machine(bed),
            "seconds": time.monotonic() - began,
            "checks": [asdict(each) for each in outcomes],
        }
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    return exit_code(outcomes)


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """0 if all that this device can show was shown."""
    return int(any(found.status not in (PASSED, NOT_HERE) for found in outcomes))


if __name__ == "__main__":
    sys.exit(main())
