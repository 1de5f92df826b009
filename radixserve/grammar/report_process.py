"""Reports on one schema in a process of its own: ``python -m radixserve.grammar.report_process``.

The schema comes as JSON on standard input and the report goes as JSON to standard output. What it does can take seconds of Python,
which a server's own process has not got; whoever starts it ends it when its time is up.
"""

from __future__ import annotations

import os
import resource
import sys

import msgspec

from radixserve.grammar.schema.report import check_schema

_MEMORY_BYTES = 2 << 30


def main() -> None:
    """Answer and end."""
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    sys.stdout.buffer.write(msgspec.json.encode(check_schema(msgspec.json.decode(sys.stdin.buffer.read()))))


if __name__ == "__main__":
    main()
