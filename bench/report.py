"""Rewrite the tables of bench/README.md from the JSON files in bench/results.

make bench-results          # runs the benchmarks and calls this
"""

from __future__ import annotations

import json
import re
from pathlib import Path

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
    tables = {"cache": micro, "scheduler": micro, "tree_share": plain, "schema_suite": suite}
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
