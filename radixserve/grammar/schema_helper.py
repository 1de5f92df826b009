"""Schemas that take long to normalise, in a process of their own.

Normalising is Python, and would take the interpreter away from the step loop for as long as it lasts. So it is tried with a
small budget first; what exceeds that goes to a helper process, which is slower to ask, takes nothing away from anybody, and can
be ended when its time is up.

As a program this module is the helper: it reads one schema after the other from standard input and ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import struct
import subprocess
import sys
import threading
import time
from typing import IO, Any

from radixserve.errors import InvalidRequest
from radixserve.grammar.schema.limits import Limits
from radixserve.grammar.schema.normalizer import normalize_schema
from radixserve.grammar.schema.refusal import TOO_COMPLEX, Origin, SchemaRefused

# Some ten milliseconds of work.
_QUICK = Limits(values=2_000, characters=100_000, shapes=2_000, shapes_per_value=500, places=500, steps=2_000)
_HEAD = struct.Struct("<Q")
_MEMORY_BYTES = 2 << 30
_START_SECONDS = 30.0


class SchemaHelper:
    """Normalises schemas. Thread-safe; each thread that needs one has a process of its own, which ends with this object.

    ``seconds``: what one schema may take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._own = threading.local()
        self._starting = 0
        self._started = threading.Condition()

    def wait_for_start(self) -> bool:
        """Wait while a process is starting; whether there was one to wait for."""
        with self._started:
            waited = self._starting > 0
            self._started.wait_for(lambda: self._starting == 0)
        return waited

    def normalize(self, schema: Any) -> Any:
        """What `normalize_schema` makes of ``schema``; raises `SchemaRefused`, also when the time is up."""
        try:
            return normalize_schema(schema, limits=_QUICK)
        except SchemaRefused as refused:
            if refused.code != TOO_COMPLEX:
                raise
        process = getattr(self._own, "process", None)
        if process is None or not process.alive:
            process = self._own.process = self._start()
        return process.normalize(schema, self._seconds)

    def _start(self) -> _Process:
        with self._started:
            self._starting += 1
        try:
            return _Process()
        finally:
            with self._started:
                self._starting -= 1
                self._started.notify_all()


class _Process:
    def __init__(self) -> None:
        command = [sys.executable, "-m", "radixserve.grammar.schema_helper"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        # Its start is nobody's time.
        self._ready = self._answer(_START_SECONDS) is not None

    def __del__(self) -> None:
        self._end()

    @property
    def alive(self) -> bool:
        """Whether it can be asked again."""
        return self._process.poll() is None

    def normalize(self, schema: Any, seconds: float) -> Any:
        if self._ready:
            try:
                _write(self._process.stdin, schema)
            except OSError:
                self._end()
            else:
                answer = self._answer(seconds)
                if answer is not None:
                    if "refused" in answer:
                        keyword, path, reason, code = answer["refused"]
                        raise SchemaRefused(Origin(keyword, path), reason, code)
                    return answer["schema"]
        self._end()
        raise SchemaRefused(
            Origin("schema", "#"), f"normalising it takes more than {seconds:g} s or too much memory", TOO_COMPLEX
        )

    def _answer(self, seconds: float) -> Any:
        """The next answer, None if there is none in time."""
        output = self._process.stdout
        assert output is not None
        data = bytearray()
        deadline = time.monotonic() + seconds
        while len(data) < _HEAD.size or len(data) < _HEAD.size + _HEAD.unpack_from(data)[0]:
            ready, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(output.fileno(), 1 << 16) if ready else b""
            if not piece:
                return None
            data += piece
        return json.loads(data[_HEAD.size :])

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _write(stream: IO[bytes] | None, value: Any) -> None:
    assert stream is not None
    data = json.dumps(value).encode()
    stream.write(_HEAD.pack(len(data)) + data)
    stream.flush()


def main() -> None:
    """Answer until standard input ends."""
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    _write(sink, {})
    while len(head := source.read(_HEAD.size)) == _HEAD.size:
        schema = json.loads(source.read(_HEAD.unpack(head)[0]))
        try:
            _write(sink, {"schema": normalize_schema(schema)})
        except SchemaRefused as refused:
            _write(sink, {"refused": [*refused.origin, refused.reason, refused.code]})
        except InvalidRequest as refused:
            _write(sink, {"refused": ["schema", "#", refused.message, refused.code]})


if __name__ == "__main__":
    main()
