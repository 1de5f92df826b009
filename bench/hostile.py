"""Constraints that are made to take long, sent to a server while it streams to others."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from radixserve.bench.load import Connection, Timeline
from radixserve.bench.servers import own_server

PATH = "/v1/completions"
STREAMS = 4
STREAM_TOKENS = 400


def _schema(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "hostile", "schema": schema}}}


def _deep(levels: int, nonce: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"const": nonce}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def _mutual(count: int, nonce: str) -> dict[str, Any]:
    """Every definition is any of all others, one level down."""
    names = [f"{nonce}{index}" for index in range(count)]
    refs = [{"$ref": f"#/$defs/{name}"} for name in names]
    return {
        "$defs": {name: {"properties": {"next": {"anyOf": refs}, name: refs[0]}, "oneOf": refs[:8]} for name in names},
        "$ref": f"#/$defs/{names[0]}",
    }


def _big(characters: int, nonce: str) -> dict[str, Any]:
    count = characters // 40
    return {"type": "object", "properties": {f"{nonce}{index:07}": {"type": "string"} for index in range(count)}}


# A name that differs from round to round makes each of them new to the cache of compiled constraints.
HOSTILE: dict[str, Callable[[str], dict[str, Any]]] = {
    "nested quantifiers": lambda nonce: {"regex": f"{nonce}((a{{1,900}}b?){{1,900}}c?){{1,900}}"},
    "nested quantifiers in a pattern": lambda nonce: _schema(
        {"type": "string", "pattern": f"^{nonce}((a|b){{1,300}}c?){{1,300}}$"}
    ),
    "lookaheads over one another": lambda nonce: _schema(
        {"allOf": [{"type": "string", "pattern": f"^(?=.*{nonce}{'.' * index}[ab]).*$"} for index in range(12)]}
    ),
    "1,000,000 enum values": lambda nonce: _schema({"enum": [nonce, *range(1_000_000)]}),
    "10,000 enum values": lambda nonce: _schema({"enum": [f"{nonce}{index * 7919:08}" for index in range(9_999)]}),
    "50,000 levels": lambda nonce: {"raw": f'{{"enum":["{nonce}"],"items":' * 50_000 + "true" + "}" * 50_000},
    "95 levels": lambda nonce: _schema(_deep(95, nonce)),
    "60 definitions that are any of one another": lambda nonce: _schema(_mutual(60, nonce)),
    "a reference to itself": lambda nonce: _schema({"$ref": "#", "title": nonce}),
    "1 MB of properties": lambda nonce: _schema(_big(1_000_000, nonce)),
    "400 KB of properties": lambda nonce: _schema(_big(400_000, nonce)),
    "products of allOf": lambda nonce: _schema(
        {
            "allOf": [
                {"anyOf": [{"properties": {f"{nonce}{index}{way}": {"const": way}}} for way in range(6)]}
                for index in range(8)
            ]
        }
    ),
    "30 dependent schemas": lambda nonce: _schema(
        {
            "dependentSchemas": {
                f"{nonce}{index}": {"properties": {f"{nonce}{index + 1}": {"minLength": index}}, "minProperties": index}
                for index in range(30)
            }
        }
    ),
    "unique items of 64 values": lambda nonce: _schema(
        {"type": "array", "items": {"enum": [nonce, *range(63)]}, "uniqueItems": True}
    ),
    "a grammar of 8,000 rules without an end": lambda nonce: {
        "ebnf": f'root ::= r0 "{nonce}"\n'
        + "\n".join(f"r{index} ::= r{index + 1}" for index in range(8_000))
        + "\nr8000 ::= root"
    },
}


def body_of(case: dict[str, Any]) -> bytes:
    """The request of a case as it goes over the wire."""
    body = {"prompt": "Say", "max_tokens": 2, **case}
    raw = body.pop("raw", None)
    if raw is None:
        return json.dumps(body).encode()
    empty = json.dumps({**body, **_schema("HERE")}).encode()
    return empty.replace(b'"HERE"', str(raw).encode())


def post(url: str, data: bytes) -> tuple[float, int, str]:
    """Seconds until the answer, its status, and the error's code and message if it is one."""
    request = urllib.request.Request(f"{url}{PATH}", data, {"Content-Type": "application/json"})
    began = time.perf_counter()
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            status, text = int(answer.status), answer.read()
    except urllib.error.HTTPError as refusal:
        status, text = refusal.code, refusal.read()
    seconds = time.perf_counter() - began
    error = json.loads(text).get("error")
    return seconds, status, f"{error['code']}: {error['message']}"[:160] if error else ""


async def stream(url: str, number: int) -> Timeline:
    """One free text, as a client sees it come."""
    body = {
        "prompt": f"Story number {number}: once upon a time",
        "max_tokens": STREAM_TOKENS,
        "ignore_eos": True,
        "temperature": 1,
        "seed": number,
        "stream": True,
    }
    async with Connection.opened(url) as connection:
        return await connection.post(PATH, body)


def gaps(lines: list[Timeline]) -> list[float]:
    """Seconds between neighbouring pieces of each stream."""
    return [after - before for line in lines for before, after in zip(line.pieces, line.pieces[1:], strict=False)]


async def beside_streams(options: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Gaps of four streams alone and with all hostile requests beside them, in turns; and how each of those was answered."""
    answers: dict[str, list[tuple[float, int, str]]] = {name: [] for name in HOSTILE}
    quiet: list[list[float]] = []
    beset: list[list[float]] = []
    async with own_server(options) as url:

        async def streams() -> list[Timeline]:
            return await asyncio.gather(*(stream(url, number) for number in range(STREAMS)))

        async def attack(bodies: dict[str, bytes]) -> None:
            for name, data in bodies.items():
                answers[name].append(await asyncio.to_thread(post, url, data))

        for number in range(rounds + 1):
            bodies = {name: body_of(case(f"n{number}x")) for name, case in HOSTILE.items()}
            told = await streams()
            attacking = asyncio.create_task(attack(bodies))
            beside = await streams()
            await attacking
            if number:  # the first round starts the helper process and warms up
                quiet.append(gaps(told))
                beset.append(gaps(beside))
            else:
                for several in answers.values():
                    several.clear()
        healthy = post(url, body_of({"regex": "[0-9]{3}"}))[1] == 200
    return {
        "rounds": rounds,
        "streams": STREAMS,
        "cases": {
            name: {
                "seconds": round(statistics.median(seconds for seconds, _, _ in several), 3),
                "most_seconds": round(max(seconds for seconds, _, _ in several), 3),
                "status": sorted({status for _, status, _ in several}),
                "answer": several[-1][2],
            }
            for name, several in answers.items()
        },
        "gap_ms": {name: _gap_figures(several) for name, several in (("alone", quiet), ("beside", beset))},
        "healthy_afterwards": healthy,
    }


def _gap_figures(rounds: list[list[float]]) -> dict[str, float]:
    """Medians over the rounds of their median, 99th percentile and longest gap, and the longest of all, in milliseconds."""

    def figure(pick: Callable[[list[float]], float]) -> float:
        return round(1e3 * statistics.median(pick(each) for each in rounds), 1)

    return {
        "p50": figure(statistics.median),
        "p99": figure(lambda each: statistics.quantiles(each, n=100)[98]),
        "longest": figure(max),
        "longest_of_all": round(1e3 * max(map(max, rounds)), 1),
    }
