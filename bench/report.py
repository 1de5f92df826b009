"""Rewrite the tables of bench/README.md from the JSON files in bench/results.

make bench-results          # runs the benchmarks and calls this
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def micro(name: str) -> str:
    """A table of a pytest-benchmark file: medians, in the order in which they ran."""
    data = json.loads((HERE / "results" / f"{name}.json").read_text())
    machine = data["machine_info"]["cpu"]
    lines = [f"{machine['brand_raw']}, {machine['count']} cores; microseconds", "", "| case | median | min | rounds |"]
    lines.append("|---|---|---|---|")
    for item in data["benchmarks"]:
        stats = item["stats"]
        title = item["name"].removeprefix("test_").replace("_", " ")
        lines.append(f"| {title} | {stats['median'] * 1e6:,.1f} | {stats['min'] * 1e6:,.1f} | {stats['rounds']} |")
    return "\n".join(lines)


def plain(name: str) -> str:
    """A table of a flat JSON object."""
    data = json.loads((HERE / "results" / f"{name}.json").read_text())
    return "\n".join(["| what | value |", "|---|---|", *(f"| {key} | {value} |" for key, value in data.items())])


def suite(name: str) -> str:
    """Two tables of the JSON-Schema-Test-Suite: totals, and the required part by keyword."""
    data = json.loads((HERE / "results" / f"{name}.json").read_text())
    verdicts = ("exact", "unsatisfiable", "refused", "engine", "rejects", "accepts")
    lines = [f"{data['suite']}; {data['engine']}", "", f"| draft | part | way | schemas | {' | '.join(verdicts)} |"]
    lines.append("|---|---|---|---|" + "---|" * len(verdicts))
    columns = ("draft", "part", "way", "schemas", *verdicts)
    lines += ["| " + " | ".join(str(row[key]) for key in columns) + " |" for row in data["totals"]]
    drafts = list(dict.fromkeys(row["draft"] for row in data["totals"]))
    lines += ["", f"| keyword | {' | '.join(f'{draft}: exact of all | refused' for draft in drafts)} |"]
    lines.append("|---|" + "---|---|" * len(drafts))
    for keyword, counts in data["keywords"].items():
        cells = []
        for draft in drafts:
            count = counts.get(draft, {})
            exact = count.get("exact", 0) + count.get("unsatisfiable", 0)
            cells += [f"{exact} of {sum(count.values())}", str(count.get("refused", 0))] if count else ["", ""]
        if not keyword.startswith("optional/"):
            lines.append(f"| {keyword} | {' | '.join(cells)} |")
    return "\n".join(lines)


def overhead(name: str) -> str:
    """A table of what HTTP and the second process add."""
    data = json.loads((HERE / "results" / f"{name}.json").read_text())
    columns = ("seconds", "added ms a request", "added ms a token", "throughput")
    lines = [f"{data['rounds']} rounds, load {data['load']:.1f} when it ended (this benchmark's own included)", ""]
    lines += [f"| case | {' | '.join(columns)} |", "|---|---|---|---|---|"]
    for case, row in data["cases"].items():
        lines.append(f"| {case} | {' | '.join(str(row.get(column, '')) for column in columns)} |")
    return "\n".join(lines)


def structured(name: str) -> str:
    """Tables of structured output: the corpus, throughput, hostile requests."""
    data = json.loads((HERE / "results" / f"{name}.json").read_text())
    corpus, speed, hostile = data["corpus"], data["throughput"], data["hostile"]
    load = f"load of the machine when it began {data['load_before']:.1f}, when it ended {data['load_after']:.1f}"
    lines = [f"{data['cores']} cores; {load} (this benchmark's own included)", ""]
    lines += ["| over the corpus | mean ms | p50 ms | p99 ms | longest ms |", "|---|---|---|---|---|"]
    compiling = corpus["compile"]
    for title, times in (
        (f"compiling {corpus['schemas']} schemas", compiling["first"]),
        ("the same again, from the cache", compiling["cached"]),
        (f"{corpus['masks']:,} masks", corpus["mask"]),
    ):
        lines.append(f"| {title} | {times['mean_ms']} | {times['p50_ms']} | {times['p99_ms']} | {times['max_ms']} |")
    lines += [
        "",
        _documents(corpus),
        "",
        _batch(speed),
        "",
        "| way | tokens/s | to free text | steps | waiting for masks | following | ways |",
        "|---|---|---|---|---|---|---|",
    ]
    for way, row in speed["ways"].items():
        shares = " | ".join(
            f"{row[key]:.2%}" for key in ("waiting_for_masks", "following_grammars", "keeping_ways_to_the_end")
        )
        lines.append(f"| {way} | {row['tokens_per_s']:,.0f} | {row['to_free']:.3f} | {row['steps']:.0f} | {shares} |")
    lines += ["", f"Fast-forward against one forced token a step: {speed['fast_forward_gain']:.3f}.", ""]
    lines += ["| hostile request | seconds | longest | status | answer |", "|---|---|---|---|---|"]
    for case, row in hostile["cases"].items():
        status = ", ".join(map(str, row["status"]))
        answer = row["answer"].replace("|", "&#124;") or "served"
        lines.append(f"| {case} | {row['seconds']} | {row['most_seconds']} | {status} | {answer} |")
    lines += [
        "",
        f"| gaps of {hostile['streams']} streams, ms | p50 | p99 | longest | longest of {hostile['rounds']} rounds |",
    ]
    lines.append("|---|---|---|---|---|")
    for way, row in hostile["gap_ms"].items():
        lines.append(f"| {way} | {row['p50']} | {row['p99']} | {row['longest']} | {row['longest_of_all']} |")
    return "\n".join(lines)


def _documents(corpus: dict[str, Any]) -> str:
    ends = f"{corpus['finished']} finished ({corpus['closed_by_finish_json']} of them closed by it), {corpus['invalid']} invalid"
    forced = f"{corpus['forced_share']:.0%} of the tokens forced"
    return f"{corpus['documents']} documents with `finish_json`: {ends}; {forced}. Refused schemas: {', '.join(corpus['refused'])}."


def _batch(speed: dict[str, Any]) -> str:
    forced = f"{speed['forced_share']:.0%} forced"
    return f"{speed['tokens']:,} tokens in documents of {len(speed['batch'])} schemas, 16 at once, {forced}"


def programs(name: str) -> str:
    """Tables of the example programs: tokens, seconds by way, lines of code."""
    data = json.loads((HERE / "results" / f"{name}.json").read_text())
    head = f"{data['cores']} cores; medians of {data['rounds']} rounds; load of the machine when it ended {data['load']:.1f}"
    lines = [f"{head} (this benchmark's own included)", ""]
    lines += [
        "| program | items | calls | prompt tokens | computed | without the tree | hit rate | optimal | of optimal |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for program, row in data["programs"].items():
        tree, without = row["ways"]["tree"], row["ways"]["no cache"]
        counts = " | ".join(
            f"{count:,}"
            for count in (row["items"], tree["calls"], tree["prompt"], tree["computed"], without["computed"])
        )
        rates = f"{tree['hit_rate']:.1%} | {tree['optimal_hit_rate']:.1%} | {tree['of_optimum']:.1%}"
        lines.append(f"| {program} | {counts} | {rates} |")
    ways = list(next(iter(data["programs"].values()))["ways"])
    lines += ["", f"| seconds | {' | '.join(ways)} |", f"|---|{'---|' * len(ways)}"]
    for program, row in data["programs"].items():
        base = row["ways"]["tree"]["seconds"]
        cells = [f"{row['ways'][way]['seconds']:.2f} ({row['ways'][way]['seconds'] / base:.2f}x)" for way in ways[1:]]
        lines.append(f"| {program} | {base:.2f} | {' | '.join(cells)} |")
    lines += ["", f"| tokens computed | {' | '.join(ways)} |", f"|---|{'---|' * len(ways)}"]
    for program, row in data["programs"].items():
        lines.append(f"| {program} | {' | '.join(format(row['ways'][way]['computed'], ',') for way in ways)} |")
    lines += ["", "| lines of code | radixlang | openai SDK | ratio |", "|---|---|---|---|"]
    counted = {program: row["lines"] for program, row in data["programs"].items()}
    whole = {side: sum(row[side] for row in counted.values()) for side in ("ours", "sdk")}
    for program, row in {**counted, "all": whole}.items():
        lines.append(f"| {program} | {row['ours']} | {row['sdk']} | {row['sdk'] / row['ours']:.1f} |")
    return "\n".join(lines)


def slim(name: str) -> None:
    """Leave out of a pytest-benchmark file what differs from machine to machine and says nothing."""
    path = HERE / "results" / f"{name}.json"
    data = json.loads(path.read_text())
    cpu = data["machine_info"]["cpu"]
    kept = {
        "machine_info": {"cpu": {"brand_raw": cpu["brand_raw"], "count": cpu["count"]}},
        "benchmarks": [
            {
                "name": item["name"],
                "stats": {key: item["stats"][key] for key in ("min", "median", "mean", "max", "rounds")},
            }
            for item in data["benchmarks"]
        ],
    }
    path.write_text(json.dumps(kept, indent=1) + "\n")


def main() -> None:
    tables = {
        "cache": micro,
        "scheduler": micro,
        "tree_share": plain,
        "schema_suite": suite,
        "structured": structured,
        "server_overhead": overhead,
        "server_overhead_torch": overhead,
        "programs": programs,
    }
    for name in ("cache", "scheduler"):
        slim(name)
    path = HERE / "README.md"
    text = path.read_text()
    for name, table in tables.items():
        marked = f"<!-- {name} -->"
        text = re.sub(f"{marked}.*?{marked}", f"{marked}\n\n{table(name)}\n\n{marked}", text, flags=re.DOTALL)
    path.write_text(text)


if __name__ == "__main__":
    main()
