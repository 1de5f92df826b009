"""What the check scripts share: the server's address, a registry of checks, expectations that say what they saw.

A script imports this module by its bare name, since it runs in the environment of its client, where the project is not
installed; `run.py` puts this folder on its path. Only the standard library is used here.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

CHECK_SECONDS = 120

PROMPT = "Name three colours of the rainbow and say one thing about each."
SYSTEM = "You are a careful assistant who answers in short sentences and never makes anything up."


@dataclass(frozen=True, slots=True)
class Server:
    """Where the server under test is: ``root`` without, ``url`` with ``/v1``; ``key`` opens it, ``model`` is its name there."""

    root: str
    key: str
    model: str
    context: int

    @property
    def url(self) -> str:
        """Base address of the OpenAI endpoints."""
        return f"{self.root}/v1"

    def token_ids(self, text: str) -> list[int]:
        """``text`` in the model's tokens, without special ones."""
        body = json.dumps({"prompt": text, "add_special_tokens": False}).encode()
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(f"{self.root}/tokenize", body, headers), timeout=60
        ) as answer:
            tokens: list[int] = json.load(answer)["tokens"]
        return tokens

    @classmethod
    def from_environment(cls) -> Server:
        """The server that `run.py` names in the environment."""
        return cls(
            root=os.environ["CLIENTS_SERVER"].rstrip("/"),
            key=os.environ["CLIENTS_KEY"],
            model=os.environ["CLIENTS_MODEL"],
            context=int(os.environ["CLIENTS_CONTEXT"]),
        )


class Mismatch(AssertionError):
    """Something differs from what the client was promised."""


def expect(condition: object, what: str) -> None:
    """Raise `Mismatch` saying ``what`` unless ``condition`` holds."""
    if not condition:
        raise Mismatch(what)


def expect_equal(got: object, wanted: object, what: str) -> None:
    """Raise `Mismatch` unless both are equal."""
    expect(got == wanted, f"{what}: got {got!r}, wanted {wanted!r}")


def expect_text(text: object, what: str = "content") -> str:
    """``text`` if it is a string that says something."""
    if not isinstance(text, str) or not text.strip():
        raise Mismatch(f"{what}: got {text!r}, wanted a text that is not empty")
    return text


def expect_usage(prompt: object, completion: object, total: object, *, most: int | None = None) -> None:
    """Token counts are there, add up and stay within ``most`` generated tokens."""
    if not (isinstance(prompt, int) and isinstance(completion, int) and isinstance(total, int)):
        raise Mismatch(f"usage: got prompt={prompt!r} completion={completion!r} total={total!r}, wanted three counts")
    expect(prompt > 0 and completion > 0, f"usage: got prompt={prompt} completion={completion}, wanted both above 0")
    expect_equal(total, prompt + completion, "usage: total")
    expect(
        most is None or completion <= most, f"usage: got {completion} generated tokens, at most {most} were asked for"
    )


def expect_ended(reason: object, completion: int, limit: int) -> None:
    """The finish reason is ``length`` exactly when the limit was reached, else ``stop``."""
    wanted = {"length", "stop"} if completion == limit else {"stop"}
    expect(
        reason in wanted, f"finish_reason: got {reason!r} after {completion} of {limit} tokens, wanted one of {wanted}"
    )


def expect_cached(tokens: object, prompt: int) -> None:
    """Most of a repeated prompt is cached. All of it may be, where a grammar forces the first token and nothing has to be
    computed for that.
    """
    if not isinstance(tokens, int):
        raise Mismatch(f"cached tokens: got {tokens!r}, wanted a count")
    expect(prompt // 2 < tokens <= prompt, f"cached tokens: got {tokens} of a repeated prompt of {prompt}, wanted most")


def expect_raises(kind: type[BaseException] | tuple[type[BaseException], ...], call: Callable[[], object]) -> Any:
    """The exception of that kind that ``call`` raises; anything else is a `Mismatch`."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    names = " or ".join(each.__name__ for each in kinds)
    try:
        result = call()
    except kinds as error:
        return error
    except Exception as error:
        raise Mismatch(f"got {type(error).__module__}.{type(error).__name__}: {error}, wanted {names}") from error
    raise Mismatch(f"got {str(result)[:200]!r}, wanted {names}")


def expect_match(pattern: str, text: object, what: str) -> str:
    """``text`` if all of it matches the pattern."""
    if not isinstance(text, str) or re.fullmatch(pattern, text, re.DOTALL) is None:
        raise Mismatch(f"{what}: got {text!r}, wanted all of it to match {pattern}")
    return text


def middle_word(text: str) -> str:
    """A word from inside ``text`` that is at least three letters long: something to stop at."""
    words: list[str] = [word for word in re.findall(r"[A-Za-z]{3,}", text)[1:] if not text.startswith(word)]
    expect(words, f"no word to stop at in {text!r}")
    return words[len(words) // 2]


def too_long(server: Server) -> str:
    """A text with more tokens than the context holds."""
    return "one two three four " * (server.context // 4 + 100)


_checks: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    """Register a check: a function without arguments that raises when something is wrong. Its docstring says what it holds."""
    _checks.append(function)
    return function


def _overdue(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"no result after {CHECK_SECONDS} s")


def _reason(error: BaseException) -> str:
    last = next(
        (
            frame
            for frame in reversed(traceback.extract_tb(error.__traceback__))
            if Path(frame.filename).name == "check.py"
        ),
        None,
    )
    where = "" if last is None else f" (check.py:{last.lineno})"
    text = " ".join(str(error).split())[:600]
    return f"{'' if isinstance(error, Mismatch) else type(error).__name__ + ': '}{text}{where}"


def run_checks() -> None:
    """Run all registered checks in order and leave with status 1 if any fails.

    Prints a line for each. ``CLIENTS_REPORT`` names a file that gets a JSON line for each; with ``CLIENTS_FAIL_FAST`` the
    first failure ends the run.
    """
    report = os.environ.get("CLIENTS_REPORT")
    only = [name for name in os.environ.get("CLIENTS_ONLY", "").split(",") if name]
    failed = False
    signal.signal(signal.SIGALRM, _overdue)
    for function in _checks:
        name = function.__name__
        if only and name not in only:
            continue
        began = time.monotonic()
        signal.alarm(CHECK_SECONDS)
        try:
            function()
            problem = None
        except Exception as error:
            problem = _reason(error)
            if os.environ.get("CLIENTS_TRACEBACK"):
                traceback.print_exc()
        finally:
            signal.alarm(0)
        seconds = round(time.monotonic() - began, 2)
        print(
            f"{'ok  ' if problem is None else 'FAIL'} {name} ({seconds} s){'' if problem is None else ': ' + problem}",
            flush=True,
        )
        if report:
            with Path(report).open("a") as file:
                file.write(json.dumps({"check": name, "problem": problem, "seconds": seconds}) + "\n")
        failed = failed or problem is not None
        if failed and os.environ.get("CLIENTS_FAIL_FAST"):
            break
    sys.stdout.flush()
    # Some clients leave threads behind that would hold the interpreter; nothing is left to be done.
    os._exit(int(failed))
