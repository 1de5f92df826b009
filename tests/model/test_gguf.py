"""The GGUF reader against the `gguf` package, and on files that are damaged or hostile."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from radixserve.errors import ModelLoadError, UnknownTensorType
from radixserve.model.gguf import GGUFFile
from tests.model.gguf_files import write_file

METADATA = {"a.text": "grün", "a.number": 7, "a.flag": True, "a.real": 1.5, "a.words": ["x", "", "ü"], "a.ids": [1, 2]}
TENSORS: dict[str, np.ndarray[Any, Any]] = {
    "one": np.arange(12, dtype=np.float32).reshape(3, 4),
    "two": np.arange(5, dtype=np.float16),
}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    write_file(path, METADATA, TENSORS)
    return path


def test_metadata_and_tensors_equal_the_packages_reader(small: Path) -> None:
    file = GGUFFile.open(small)
    reader = gguf.GGUFReader(small)
    assert file.metadata["general.architecture"] == "llama"
    for key, value in METADATA.items():
        found = file.metadata[key]
        assert (found.tolist() if isinstance(found, np.ndarray) else found) == value
        assert reader.fields[key].contents() == value
    assert file.tensor_names == tuple(tensor.name for tensor in reader.tensors)
    for tensor in reader.tensors:
        ours = file.tensor(tensor.name)
        assert ours.raw.tobytes() == tensor.data.tobytes()
        assert (ours.dequantize() == TENSORS[tensor.name]).all()
    with pytest.raises(ModelLoadError, match="three"):
        file.tensor("three")


def test_every_cut_is_noticed(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [*range(1, len(data) - 1, 7), len(data) - 1]:
        cut.write_bytes(data[:length])
        # Padding after the last tensor's data is all that may be missing.
        if length < len(data) - 32:
            with pytest.raises(ModelLoadError):
                GGUFFile.open(cut)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"GGML" + data[4:], "not a GGUF file"),
        (lambda data: data[:4] + struct.pack("<I", 9) + data[8:], "version 9"),
        (lambda data: data[:4] + struct.pack(">I", 3) + data[8:], "big-endian"),
        (lambda data: data[:8] + struct.pack("<Q", 2**60) + data[16:], "tensors are announced"),
        (lambda data: data[:16] + struct.pack("<Q", 2**60) + data[24:], "metadata pairs are announced"),
        (lambda data: data[:24] + struct.pack("<Q", 2**63) + data[32:], "cut short or damaged"),
        (lambda data: b"", "cannot be mapped"),
    ],
)
def test_hostile_headers_are_refused(small: Path, damage: object, message: str) -> None:
    assert callable(damage)
    small.write_bytes(damage(small.read_bytes()))
    with pytest.raises(ModelLoadError, match=message):
        GGUFFile.open(small)


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def handmade(pairs: list[bytes], tensors: list[bytes], data: int = 256) -> bytes:
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs) + b"".join(tensors)
    return header + bytes(-len(header) % 32 + data)


def array(kind: int, count: int, value: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + value


ALIGNMENT = "general.alignment"


@pytest.mark.parametrize(
    ("pairs", "tensors", "message"),
    [
        ([pair("a", 4, bytes(4))] * 2, [], "'a' is given twice"),
        ([pair("a", 13, bytes(4))], [], "a is of the unknown value type 13"),
        ([pair("a", 9, array(9, 1, bytes(20)))], [], "nested value type 9"),
        ([pair("a", 9, array(4, 2**61, b""))], [], "values of a are announced"),
        ([pair("a", 9, array(8, 2**61, b""))], [], "strings of a are announced"),
        ([pair("a", 9, array(8, 2, text("x") + struct.pack("<Q", 2**62)))], [], "past the end"),
        ([pair("a", 9, array(8, 2, text("x") + text(b"\xff")))], [], "string 1 of an array is not UTF-8"),
        ([pair(b"\xff", 4, bytes(4))], [], "not UTF-8"),
        ([pair(ALIGNMENT, 4, struct.pack("<I", 24))], [], "24, not a power of two"),
        ([pair(ALIGNMENT, 4, struct.pack("<I", 0))], [], "0, not a power of two"),
        ([pair(ALIGNMENT, 8, text("x"))], [], "general.alignment is of type str, not int"),
        ([pair(ALIGNMENT, 7, b"\1")], [], "general.alignment is of type bool, not int"),
        ([], [tensor("t", (4,))] * 2, "tensor t is described twice"),
        ([], [tensor("t", ())], "tensor t has 0 dimensions"),
        ([], [tensor("t", (1, 1, 1, 1, 1))], "tensor t has 5 dimensions"),
        ([], [tensor("t", (4, 0))], r"tensor t of shape \[0, 4\]"),
        ([], [tensor("t", (33,), kind=8)], "cannot be of type Q8_0"),
        ([], [tensor("t", (4,), offset=4)], "tensor t lies at bytes"),
        ([], [tensor("t", (4,), offset=256)], "tensor t lies at bytes"),
        ([], [tensor("t", (2**40, 2**40))], "tensor t lies at bytes"),
        ([], [tensor("t", (4,), offset=2**63)], "tensor t lies at bytes"),
    ],
)
def test_damaged_descriptions_are_refused(
    pairs: list[bytes], tensors: list[bytes], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(handmade(pairs, tensors))
    with pytest.raises(ModelLoadError, match=message):
        GGUFFile.open(path)


def test_metadata_of_every_type_and_another_alignment(tmp_path: Path) -> None:
    layouts = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    values = {kind: True if code == "?" else 1.5 if code in "fd" else 7 for kind, code in layouts.items()}
    pairs = [pair(f"one.{kind}", kind, struct.pack(f"<{code}", values[kind])) for kind, code in layouts.items()]
    pairs += [
        pair(f"two.{kind}", 9, array(kind, 2, struct.pack(f"<2{code}", values[kind], 0)))
        for kind, code in layouts.items()
    ]
    pairs += [pair("no.words", 9, array(8, 0, b"")), pair(ALIGNMENT, 4, struct.pack("<I", 8))]
    header = b"GGUF" + struct.pack("<IQQ", 2, 1, len(pairs)) + b"".join(pairs) + tensor("t", (2,), offset=8)
    path = tmp_path / "m.gguf"
    path.write_bytes(header + bytes(-len(header) % 8 + 8) + struct.pack("<2f", 1.5, -2.0))
    file = GGUFFile.open(path)
    for kind in layouts:
        assert file.metadata[f"one.{kind}"] == values[kind]
        assert type(file.metadata[f"one.{kind}"]) is type(values[kind])
        assert file.metadata[f"two.{kind}"].tolist() == [values[kind], 0]
    assert file.metadata.strings("no.words") == []
    assert file.tensor("t").dequantize().tolist() == [1.5, -2.0]


def test_metadata_is_read_as_what_it_should_be(small: Path) -> None:
    metadata = GGUFFile.open(small).metadata
    assert metadata.typed("a.number", float) == 7.0 and metadata.typed("missing", int) is None
    assert metadata.strings("missing") is None and metadata.numbers("missing", 2) is None
    for key, kind in (("a.text", int), ("a.flag", int), ("a.real", int), ("a.number", str), ("a.flag", float)):
        with pytest.raises(ModelLoadError, match=f"{key} is of type"):
            metadata.typed(key, kind)
    with pytest.raises(ModelLoadError, match="array of strings"):
        metadata.strings("a.ids")
    for key, length in (("a.ids", 3), ("a.words", 3), ("a.number", 1)):
        with pytest.raises(ModelLoadError, match=f"{key} is not an array of {length} numbers"):
            metadata.numbers(key, length)


def test_a_flipped_byte_never_crashes(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    rng = np.random.default_rng(0)
    path = tmp_path / "flipped.gguf"
    for _ in range(300):
        changed = bytearray(data)
        changed[int(rng.integers(0, 400))] = int(rng.integers(0, 256))
        path.write_bytes(changed)
        try:
            file = GGUFFile.open(path)
        except ModelLoadError:
            continue
        for name in file.tensor_names:
            file.tensor(name).dequantize()


def test_an_unknown_tensor_type_is_named(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    at = data.index(b"one") + 3 + 4 + 2 * 8
    for number, name in ((10, "Q2_K"), (999, "999")):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(data[:at] + struct.pack("<I", number) + data[at + 4 :])
        with pytest.raises(UnknownTensorType, match=f"tensor one is of .*{name}"):
            GGUFFile.open(path)


def test_split_files_are_one(tmp_path: Path) -> None:
    for number, name in enumerate(("one", "two")):
        extra = {"split.no": number, "split.count": 2, "split.tensors.count": 2}
        write_file(tmp_path / f"m-0000{number + 1}-of-00002.gguf", extra, {name: TENSORS[name]})
    file = GGUFFile.open(tmp_path / "m-00001-of-00002.gguf")
    assert file.tensor_names == ("one", "two")
    assert (file.tensor("two").dequantize() == TENSORS["two"]).all()
    with pytest.raises(ModelLoadError, match="not the first part"):
        GGUFFile.open(tmp_path / "m-00002-of-00002.gguf")
    renamed = tmp_path / "renamed.gguf"
    renamed.write_bytes((tmp_path / "m-00001-of-00002.gguf").read_bytes())
    with pytest.raises(ModelLoadError, match="does not end in -00001-of-00002"):
        GGUFFile.open(renamed)


@pytest.mark.parametrize(
    ("second", "name", "message"),
    [
        ({"split.no": 1, "split.count": 3}, "two", "does not say that it is part 2 of 2"),
        ({"split.no": 0, "split.count": 2}, "two", "does not say that it is part 2 of 2"),
        ({"split.no": 1, "split.count": 2}, "one", "tensor one is in an earlier part too"),
        ({"split.no": 1, "split.count": 2}, None, "2 tensors are announced, the 2 parts hold 1"),
        (None, None, r"m-00002-of-00002\.gguf is not beside it"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    second: dict[str, int] | None, name: str | None, message: str, tmp_path: Path
) -> None:
    first, other = (tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2))
    write_file(first, {"split.no": 0, "split.count": 2, "split.tensors.count": 2}, {"one": TENSORS["one"]})
    if second is not None:
        write_file(other, second, {} if name is None else {name: TENSORS[name]})
    with pytest.raises(ModelLoadError, match=message):
        GGUFFile.open(first)
