from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from radixserve.bench.chart import Bar, Group, bar_chart, number
from radixserve.bench.engine_tables import kernel_chart, kernel_text, shared_pairs, step_chart, step_text
from radixserve.bench.floors import Bound, Floor
from radixserve.bench.kernels import KernelReport, KernelResult
from radixserve.bench.machine import Limits, Machine
from radixserve.bench.part_timer import PARTS
from radixserve.bench.step import KvBytes, StepReport, StepResult
from radixserve.bench.tables import bound_cells, machine_line, table

SVG = "{http://www.w3.org/2000/svg}"
BOUND = Bound(10, 20, 0.001, 0.003, 0.003)


def step_result(name: str, median: float, floor: Floor | None = None) -> StepResult:
    parts = dict.fromkeys(PARTS, 0.001)
    ratio = median / floor.seconds if floor is not None else None
    return StepResult(name, name, 2, 2, 5, median, median, parts, 0.002, KvBytes(100, 200, 300), floor, ratio)


def step_report(*cases: StepResult) -> StepReport:
    return StepReport("step", 1, "now", Machine("cpu", 2, None), "tiny", {}, 0, {"kernels": "native"}, list(cases))


def test_columns_line_up() -> None:
    assert table(("a", "b"), [("x", "1"), ("long", "22")]) == (
        "| a    |  b |\n| ---- | -: |\n| x    |  1 |\n| long | 22 |"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.00123456, "0.00123"), (1.005, "1.00"), (42.123, "42.1"), (999.6, "1,000"), (12345.6, "12,346")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_floor_is_bytes_operations_and_the_larger() -> None:
    assert bound_cells(BOUND, 1e3) == ["1.00", "3.00", "3.00"]
    assert set(bound_cells(None, 1e3)) == {"–"}


def test_the_machine_says_what_it_can(limits: Limits) -> None:
    assert "1.0 GB/s from memory" in machine_line(Machine("cpu", 2, limits))
    assert "no floors" in machine_line(Machine("cpu", 2, None))


def test_steps_are_shown_with_their_floor_and_what_sharing_saves() -> None:
    floor = Floor(projections=BOUND)
    report = step_report(step_result("2@64", 0.012, floor), step_result("2@64/shared", 0.006, floor))
    text = step_text(report)
    row = next(line for line in text.splitlines() if line.startswith("| 2@64 "))
    assert [cell.strip() for cell in row.split("|")[3:9]] == ["1.00", "3.00", "3.00", "12.0", "12.0", "4.00"]
    assert shared_pairs(report.cases) == [(report.cases[0], report.cases[1])]
    assert "2.00 |" in text.splitlines()[-1]
    assert "time over the floor" in step_chart(report)
    assert "milliseconds" in step_chart(step_report(step_result("1@64", 0.012)))
    assert shared_pairs(report.cases[1:]) == []


def test_kernels_are_shown_beside_their_rival() -> None:
    result = KernelResult("linear", "bf16", 0.006, 0.005, 10, 20, BOUND, 2.0, rival_s=0.009)
    report = KernelReport("kernels", 1, "now", Machine("cpu", 2, None), "v4", 2, [result])
    assert "2.00" in kernel_text(report) and "9.00" in kernel_text(report)
    assert "oneDNN" in kernel_chart(report)


def test_bars_are_as_long_as_their_values() -> None:
    bars = (Bar("one", 2.0, 1.0), Bar("two", 4.0), Bar("three", None))
    root = ET.fromstring(bar_chart("a < b & c", "unit", [Group("group", bars)]))
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert {"a < b & c", "unit", "group", "one", "two", "three", "floor", "not measured", "2.00", "4.00"} <= set(texts)
    long = [element for element in root.iter(f"{SVG}rect") if element.get("height") == "15"]
    widths = [float(element.get("width", "")) for element in long]
    assert widths == pytest.approx([widths[1] / 2, widths[1]], abs=0.1)


@pytest.mark.parametrize("values", [[], [0.0], [1e-6], [3e9]])
def test_any_values_make_a_chart(values: list[float]) -> None:
    ET.fromstring(bar_chart("t", "u", [Group("g", tuple(Bar("s", value) for value in values))]))
