"""Drive the running server with other people's clients, each unmodified and in an environment of its own.

    python -m tests.clients.run                          all clients against a fresh server
    python -m tests.clients.run openai sglang            those clients only
    python -m tests.clients.run --url http://...         a server that runs already (with --key and --model)
    python -m tests.clients.run --without usage,stop     servers that lack a feature: each client must be seen to fail
    python -m tests.clients.run --without all

Versions, checks and what fails against which missing feature are kept in results.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clients.environments import HERE, Client, clients, install, python_of, versions
from tests.clients.kit.proxy import Proxy
from tests.clients.mutations import ESSENTIAL, MUTATIONS
from tests.clients.serving import CONTEXT, KEY, MODEL, ServerFailed, served

ROOT = HERE.parent.parent
RESULTS = HERE / "results.json"
WIRE_PACKAGES = ("openai", "httpx", "httpx2", "aiohttp", "requests", "pydantic")
NOT_USED = "not used"
NOT_SEEN = "not seen"


@dataclass(frozen=True, slots=True)
class Target:
    """A running server."""

    root: str
    key: str
    model: str


@dataclass(slots=True)
class Run:
    """One run of one client's checks. ``failure`` is set when the script itself did not get through."""

    seconds: float = 0.0
    checks: list[dict[str, Any]] = field(default_factory=list)
    failure: str | None = None

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The checks that did not hold."""
        return [check for check in self.checks if check["problem"] is not None]

    @property
    def passed(self) -> bool:
        """All checks were run and held."""
        return self.failure is None and bool(self.checks) and not self.failed


def run_client(client: Client, venvs: Path, target: Target, *, timeout: float, fail_fast: bool, show: bool) -> Run:
    """Run a client's checks; their lines are printed when ``show`` is set."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "CLIENTS_", "PYTHON"))},
        "CLIENTS_SERVER": target.root,
        "CLIENTS_KEY": target.key,
        "CLIENTS_MODEL": target.model,
        "CLIENTS_CONTEXT": str(CONTEXT),
        "CLIENTS_FAIL_FAST": "1" if fail_fast else "",
        "CLIENTS_TRACEBACK": os.environ.get("CLIENTS_TRACEBACK", ""),
        "CLIENTS_ONLY": os.environ.get("CLIENTS_ONLY", ""),
        "PYTHONPATH": str(HERE / "kit"),
        "PYTHONWARNINGS": "ignore",
        "PYTHONDONTWRITEBYTECODE": "1",
        # These clients look for prices, news or telemetry on the net unless they are told not to.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HAYSTACK_TELEMETRY_ENABLED": "False",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }
    result, began = Run(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="clients-") as folder:
        report = Path(folder) / "report.jsonl"
        environment["CLIENTS_REPORT"] = str(report)
        command = [str(python_of(client, venvs)), str(client.script)]
        quiet = None if show else subprocess.DEVNULL
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=quiet, stderr=quiet)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status, result.failure = 1, f"no end after {timeout:.0f} s"
        if report.exists():
            result.checks = [json.loads(line) for line in report.read_text().splitlines()]
        if status != 0 and not result.failed and result.failure is None:
            result.failure = f"the script ended with status {status}"
    result.seconds = round(time.monotonic() - began, 1)
    return result


def table(rows: list[list[str]]) -> str:
    """Rows as columns of even width; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def keep(path: Path, part: str, new: dict[str, Any]) -> None:
    """Put the results of this run into the file beside those of clients that were not run; those of single checks are not kept."""
    if os.environ.get("CLIENTS_ONLY"):
        return
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    old: dict[str, Any] = results.get(part, {})
    results["python"], results["machine"] = platform.python_version(), platform.machine()
    for name, value in new.items():
        merge = part == "without" and isinstance(old.get(name), dict)
        old[name] = {**old[name], **value} if merge else value
    results[part] = dict(sorted(old.items()))
    path.write_text(json.dumps(results, indent=1, sort_keys=False) + "\n")


def check_clients(chosen: list[Client], target: Target, options: argparse.Namespace) -> bool:
    """Run every client as it is; True if all checks hold."""
    rows, results = [["client", "version", "checks", "seconds", ""]], {}
    for client in chosen:
        print(f"== {client.name}", flush=True)
        run = run_client(client, options.venvs, target, timeout=options.timeout, fail_fast=False, show=True)
        found = versions(client, options.venvs)
        held = len(run.checks) - len(run.failed)
        note = run.failure or ("" if run.passed else "FAILED: " + ", ".join(check["check"] for check in run.failed))
        rows.append([client.name, found[client.package], f"{held}/{len(run.checks)}", f"{run.seconds:.1f}", note])
        results[client.name] = {
            "package": client.package,
            "version": found[client.package],
            "passed": run.passed,
            "seconds": run.seconds,
            "checks": {check["check"]: check["problem"] or "ok" for check in run.checks},
            # All versions are in the client's lock file; these are the ones that shape what goes over the wire.
            "versions": {name: found[name] for name in WIRE_PACKAGES if name in found},
        }
        if run.failure:
            results[client.name]["failure"] = run.failure
    print("\n" + table(rows))
    keep(options.results, "clients", results)
    return all(result["passed"] for result in results.values())


def verdicts_of(client: Client, target: Target, names: list[str], options: argparse.Namespace) -> dict[str, str] | None:
    """What the client sees without each feature; None if its checks do not even hold with all of them."""

    def run_through(proxy: Proxy, fail_fast: bool) -> Run:
        through = Target(proxy.root, target.key, target.model)
        return run_client(client, options.venvs, through, timeout=options.timeout, fail_fast=fail_fast, show=False)

    with Proxy(target.root) as proxy:
        whole = run_through(proxy, fail_fast=False)
        used = {name: any(exchange.touched_by(MUTATIONS[name]()) for exchange in proxy.exchanges) for name in names}
    if not whole.passed:
        print(f"{client.name}: with all features: {whole.failure or whole.failed}", flush=True)
        return None
    verdicts = {}
    for name in names:
        verdicts[name] = NOT_USED
        if used[name]:
            with Proxy(target.root, MUTATIONS[name]()) as proxy:
                run = run_through(proxy, fail_fast=True)
            verdicts[name] = run.failed[0]["check"] if run.failed else run.failure or NOT_SEEN
        print(f"{client.name}: without {name}: {verdicts[name]}", flush=True)
    return verdicts


def check_mutations(chosen: list[Client], target: Target, names: list[str], options: argparse.Namespace) -> bool:
    """Run every client against servers without a feature each.

    True if every client fails without what is essential and, when all were run, every feature is missed by someone.
    """
    seen: dict[str, dict[str, str]] = {}
    for client in chosen:
        verdicts = verdicts_of(client, target, names, options)
        if verdicts is not None:
            seen[client.name] = verdicts
            keep(options.results, "without", {client.name: verdicts})
    marks = {NOT_SEEN: "-", NOT_USED: "."}
    rows = [["without", *seen]]
    rows += [[name, *(marks.get(verdicts[name], "fails") for verdicts in seen.values())] for name in names]
    print("\n" + table(rows) + "\n\nfails: a check failed   -: no check saw it   .: the client does not use it")
    essential = all(verdicts[name] not in marks for verdicts in seen.values() for name in names if name in ESSENTIAL)
    missed = all(any(verdicts[name] not in marks for verdicts in seen.values()) for name in names)
    missed = missed or len(chosen) < len(clients())
    return essential and missed and len(seen) == len(chosen)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.clients.run", description=__doc__.split("\n")[0] if __doc__ else None
    )
    known = [client.name for client in clients()]
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"any of {', '.join(known)} (default: all)")
    parser.add_argument("--without", metavar="FEATURES", help=f"comma list of {', '.join(MUTATIONS)}, or all")
    parser.add_argument(
        "--venvs", type=Path, default=ROOT / ".clients", help="where the environments are (default: .clients)"
    )
    parser.add_argument("--install-only", action="store_true", help="make the environments and stop")
    parser.add_argument(
        "--relock", action="store_true", help="install the newest of what is not pinned; write the lock files anew"
    )
    parser.add_argument("--url", help="a server that runs already, without /v1")
    parser.add_argument("--key", default=KEY, help="its API key")
    parser.add_argument("--model", default=MODEL, help="its model")
    parser.add_argument("--timeout", type=float, default=600, help="seconds a client may take (default: 600)")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="file for the results (default: results.json beside this)"
    )
    options = parser.parse_args(arguments)
    for name in set(options.clients) - set(known):
        parser.error(f"no client {name!r}; there are {', '.join(known)}")
    options.without = (
        (list(MUTATIONS) if options.without == "all" else options.without.split(",")) if options.without else []
    )
    for name in set(options.without) - set(MUTATIONS):
        parser.error(f"no feature {name!r} to leave out; there are {', '.join(MUTATIONS)}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 when everything is as it should be."""
    options = parse(arguments)
    chosen = [client for client in clients() if not options.clients or client.name in options.clients]
    for client in chosen:
        install(client, options.venvs, relock=options.relock)
    if options.install_only:
        return 0
    try:
        with nullcontext(options.url) if options.url else served() as root:
            target = Target(root.rstrip("/"), options.key, options.model)
            if options.without:
                return int(not check_mutations(chosen, target, options.without, options))
            return int(not check_clients(chosen, target, options))
    except ServerFailed as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
