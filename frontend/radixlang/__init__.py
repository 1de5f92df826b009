"""radixlang: programs of many model calls, written as plain Python.

import radixlang as rl

@rl.function
def answer(s, question):
    s += rl.user(question)
    s += rl.assistant(rl.gen("answer", max_tokens=64))

state = answer.run("What is a radix tree?", backend=...)
print(state["answer"])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from radixlang.accounting import Ledger
from radixlang.constraints import Choice, Grammar, JsonSchema, Regex
from radixlang.defaults import flush_cache, get_server_info, set_default_backend
from radixlang.errors import (
    BackendClosed,
    BackendError,
    InvalidProgram,
    Position,
    ProgramError,
    RadixlangError,
    Refused,
    Stopped,
    TimedOut,
    UnknownVariable,
    UnreadableOutput,
    Unsupported,
)
from radixlang.expressions import Expr, gen, gen_int, gen_json, gen_string, select
from radixlang.fork import ForkGroup
from radixlang.function import Program, function
from radixlang.plan import plan
from radixlang.report import Report, batch_report
from radixlang.roles import (
    assistant,
    assistant_begin,
    assistant_end,
    message,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
)
from radixlang.sampling import Sampling
from radixlang.select import (
    Decision,
    Method,
    Scored,
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from radixlang.state import ProgramState

__version__ = "0.1.0"

# Loaded at first use: what stands behind them takes longer to import than the language itself.
_LATER = {
    "EngineBackend": "radixlang.backends.engine",
    "FakeBackend": "radixlang.backends.fake",
    "OpenAI": "radixlang.backends.openai",
    "Runtime": "radixlang.backends.engine",
    "RuntimeEndpoint": "radixlang.backends.http",
}

if TYPE_CHECKING:
    from radixlang.backends.engine import EngineBackend, Runtime
    from radixlang.backends.fake import FakeBackend
    from radixlang.backends.http import RuntimeEndpoint
    from radixlang.backends.openai import OpenAI


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "BackendClosed",
    "BackendError",
    "Choice",
    "Decision",
    "EngineBackend",
    "Expr",
    "FakeBackend",
    "ForkGroup",
    "Grammar",
    "InvalidProgram",
    "JsonSchema",
    "Ledger",
    "Method",
    "OpenAI",
    "Position",
    "Program",
    "ProgramError",
    "ProgramState",
    "RadixlangError",
    "Refused",
    "Regex",
    "Report",
    "Runtime",
    "RuntimeEndpoint",
    "Sampling",
    "Scored",
    "Stopped",
    "TimedOut",
    "UnknownVariable",
    "UnreadableOutput",
    "Unsupported",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "batch_report",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_json",
    "gen_string",
    "get_server_info",
    "greedy_token_selection",
    "message",
    "plan",
    "select",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
]
