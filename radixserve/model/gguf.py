"""Reader of GGUF files: metadata, and tensors as raw blocks in the mapped file.

A file is, little-endian: magic ``GGUF``, u32 version, u64 number of tensors, u64 number of key-value pairs, the pairs, the
tensor descriptions (name, dimensions with the fastest first, type, offset), padding to ``general.alignment``, the data.
Strings are a u64 length and UTF-8. Every count in the header is checked against the bytes that are left before anything
is allocated for it, so a hostile header costs no more than its own size.
"""

from __future__ import annotations

import mmap
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np

from radixserve.errors import ModelLoadError, UnknownTensorType
from radixserve.model.gguf_metadata import Metadata
from radixserve.model.gguf_tensor import GGUFTensor
from radixserve.model.gguf_types import OTHER_TYPE_NAMES, TENSOR_TYPES, Bytes, TensorType

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: dict[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    _BOOL: struct.Struct("<B"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32, _U64 = _SCALARS[4], _SCALARS[10]
_MIN_PAIR_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8
_MAX_DIMENSIONS = 4
_SPLIT_NAME = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


class GGUFFile:
    """A model in one GGUF file or in the numbered parts of a split one.

    ``metadata`` is that of the first part, ``parts`` the paths of all. Tensors are views of the mapped files.
    """

    def __init__(self, parts: tuple[Path, ...], metadata: Metadata, tensors: dict[str, GGUFTensor]) -> None:
        self.parts = parts
        self.metadata = metadata
        self._tensors = tensors

    @classmethod
    def open(cls, path: Path) -> GGUFFile:
        """Map ``path`` and read its header; the first part of a split file opens all of them.

        Raises `ModelLoadError` for anything that is not a whole, well-formed file and `UnknownTensorType` for a tensor
        that could not be dequantized.
        """
        metadata, tensors = _read_part(path)
        count = metadata.typed("split.count", int) or 1
        if count == 1:
            return cls((path,), metadata, tensors)
        parts = _split_parts(path, count, metadata.typed("split.no", int))
        for number, part in enumerate(parts[1:], start=1):
            if not part.is_file():
                raise ModelLoadError(f"{path} is part 1 of {count}, but {part.name} is not beside it")
            other, more = _read_part(part)
            if other.typed("split.no", int) != number or other.typed("split.count", int) != count:
                raise ModelLoadError(f"{part} does not say that it is part {number + 1} of {count}")
            if double := tensors.keys() & more.keys():
                raise ModelLoadError(f"{part}: tensor {min(double)} is in an earlier part too")
            tensors |= more
        expected = metadata.typed("split.tensors.count", int)
        if expected is not None and expected != len(tensors):
            raise ModelLoadError(f"{path}: {expected} tensors are announced, the {count} parts hold {len(tensors)}")
        return cls(parts, metadata, tensors)

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Names in the order of the file."""
        return tuple(self._tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> GGUFTensor:
        """The tensor called ``name``; raises `ModelLoadError` if there is none."""
        try:
            return self._tensors[name]
        except KeyError:
            raise ModelLoadError(f"{self.parts[0]}: tensor {name} is missing") from None


def _split_parts(path: Path, count: int, number: int | None) -> tuple[Path, ...]:
    match = _SPLIT_NAME.match(path.name)
    if match is None or int(match["count"]) != count:
        raise ModelLoadError(f"{path} is a part of {count}, but its name does not end in -00001-of-{count:05}.gguf")
    if number != 0 or int(match["number"]) != 1:
        raise ModelLoadError(f"{path} is not the first part: give {match['stem']}-00001-of-{count:05}.gguf")
    return tuple(path.with_name(f"{match['stem']}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1))


def _read_part(path: Path) -> tuple[Metadata, dict[str, GGUFTensor]]:
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot be mapped: {error}") from error
    header = _Header(mapped, str(path))
    tensor_count, pair_count = header.start()
    metadata = Metadata(header.pairs(pair_count), str(path))
    return metadata, header.tensors(tensor_count, metadata)


class _Header:
    """A cursor over the bytes of one file."""

    def __init__(self, data: mmap.mmap, source: str) -> None:
        self._data = data
        self._size = len(data)
        self._at = 0
        self._source = source

    def start(self) -> tuple[int, int]:
        """Check magic and version; return the numbers of tensors and of pairs."""
        if self._data[:4] != b"GGUF":
            raise self._error(f"not a GGUF file (it starts with {self._data[:4]!r})")
        self._at = 4
        version = self._scalar(_U32)
        if version not in (2, 3):
            if version & 0xFFFF == 0:
                raise self._error("big-endian GGUF files are not read")
            raise self._error(f"GGUF version {version} is not read, only 2 and 3")
        tensors, pairs = self._scalar(_U64), self._scalar(_U64)
        self._expect(tensors, _MIN_TENSOR_BYTES, "tensors")
        self._expect(pairs, _MIN_PAIR_BYTES, "metadata pairs")
        return tensors, pairs

    def pairs(self, count: int) -> dict[str, Any]:
        """The metadata."""
        values: dict[str, Any] = {}
        for _ in range(count):
            key = self._string()
            if key in values:
                raise self._error(f"the key {key!r} is given twice")
            kind = self._scalar(_U32)
            values[key] = self._array(key) if kind == _ARRAY else self._value(kind, key)
        return values

    def tensors(self, count: int, metadata: Metadata) -> dict[str, GGUFTensor]:
        """The tensor descriptions, resolved to views of the data."""
        described: dict[str, tuple[tuple[int, ...], TensorType, int]] = {}
        for _ in range(count):
            name = self._string()
            if name in described:
                raise self._error(f"tensor {name} is described twice")
            described[name] = (self._shape(name), self._type(name), self._scalar(_U64))
        alignment = metadata.typed("general.alignment", int)
        alignment = 32 if alignment is None else alignment
        if alignment <= 0 or alignment & (alignment - 1):
            raise self._error(f"general.alignment is {alignment}, not a power of two")
        start = -(-self._at // alignment) * alignment
        data = np.frombuffer(self._data, np.uint8)
        return {
            name: GGUFTensor(
                name,
                kind,
                shape,
                self._view(data, name, kind, shape, start, offset, alignment),
                self._data,
                start + offset,
            )
            for name, (shape, kind, offset) in described.items()
        }

    def _shape(self, name: str) -> tuple[int, ...]:
        dimensions = self._scalar(_U32)
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._error(f"tensor {name} has {dimensions} dimensions")
        return tuple(self._scalar(_U64) for _ in range(dimensions))[::-1]

    def _type(self, name: str) -> TensorType:
        number = self._scalar(_U32)
        kind = TENSOR_TYPES.get(number)
        if kind is None:
            known = OTHER_TYPE_NAMES.get(number)
            what = f"type {known}" if known else f"the unknown type number {number}"
            readable = ", ".join(sorted(t.name for t in TENSOR_TYPES.values()))
            raise UnknownTensorType(f"{self._source}: tensor {name} is of {what}; the types read are {readable}")
        return kind

    def _view(
        self,
        data: Bytes,
        name: str,
        kind: TensorType,
        shape: tuple[int, ...],
        start: int,
        offset: int,
        alignment: int,
    ) -> Bytes:
        if 0 in shape or shape[-1] % kind.block_elements:
            raise self._error(
                f"tensor {name} of shape {list(shape)} cannot be of type {kind.name} (blocks of {kind.block_elements})"
            )
        row = kind.row_bytes(shape[-1])
        size = row
        for extent in shape[:-1]:
            size *= extent
        begin = start + offset
        if offset % alignment or begin + size > self._size:
            raise self._error(
                f"tensor {name} lies at bytes {begin} to {begin + size} of a file of {self._size} bytes: "
                "the file is cut short or damaged"
            )
        return data[begin : begin + size].reshape(*shape[:-1], row)

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._string()
        layout = _SCALARS.get(kind)
        if layout is None:
            raise self._error(f"{key} is of the unknown value type {kind}")
        value = self._scalar(layout)
        return bool(value) if kind == _BOOL else value

    def _array(self, key: str) -> Any:
        kind, count = self._scalar(_U32), self._scalar(_U64)
        if kind == _STRING:
            self._expect(count, 8, f"strings of {key}")
            return self._strings(count)
        layout = _SCALARS.get(kind)
        if layout is None:
            raise self._error(f"{key} is an array of the unknown or nested value type {kind}")
        self._expect(count, layout.size, f"values of {key}")
        dtype = np.dtype("?") if kind == _BOOL else np.dtype(layout.format)
        values = np.frombuffer(self._take(count * layout.size), np.uint8)
        return values.astype(dtype) if kind == _BOOL else values.view(dtype)

    def _strings(self, count: int) -> list[str]:
        # The hot loop of loading: a vocabulary and its merges are some 100,000 strings.
        data, at, size, unpack = self._data, self._at, self._size, _U64.unpack_from
        strings: list[str] = []
        append = strings.append
        try:
            for _ in range(count):
                end = at + 8 + unpack(data, at)[0]
                if end > size:
                    raise self._cut_short()
                append(data[at + 8 : end].decode())
                at = end
        except struct.error:
            raise self._cut_short() from None
        except UnicodeDecodeError as error:
            raise self._error(f"string {len(strings)} of an array is not UTF-8") from error
        self._at = at
        return strings

    def _string(self) -> str:
        try:
            return self._take(self._scalar(_U64)).decode()
        except UnicodeDecodeError as error:
            raise self._error(f"a string that ends at byte {self._at} is not UTF-8") from error

    def _scalar(self, layout: struct.Struct) -> Any:
        return layout.unpack(self._take(layout.size))[0]

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > self._size:
            raise self._cut_short()
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _expect(self, count: int, size: int, what: str) -> None:
        left = self._size - self._at
        if count * size > left:
            raise self._error(f"{count} {what} are announced, but only {left} bytes are left")

    def _cut_short(self) -> ModelLoadError:
        return self._error("the header runs past the end of the file: it is cut short or damaged")

    def _error(self, message: str) -> ModelLoadError:
        return ModelLoadError(f"{self._source}: {message}")
