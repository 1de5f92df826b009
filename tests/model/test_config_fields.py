"""JSON files: what is not a readable object is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixserve.errors import ModelLoadError
from radixserve.model import config_fields
from radixserve.model.config_fields import Fields, read_json


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting"),
        (b"[1]", "does not hold a JSON object"),
        (b"\xff\xfe\x00", "file.json"),
        (b'{"a": ' + b"[" * 100_000, "file.json"),
    ],
)
def test_files_that_hold_no_object(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(data)
    with pytest.raises(ModelLoadError, match=message):
        read_json(path)


def test_a_huge_or_missing_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    with pytest.raises(ModelLoadError, match=r"file\.json"):
        read_json(path)
    path.write_text('{"a": 1}')
    assert read_json(path) == {"a": 1}
    monkeypatch.setattr(config_fields, "MAX_JSON_BYTES", 7)
    with pytest.raises(ModelLoadError, match="larger than 7 bytes"):
        read_json(path)


def test_null_counts_as_missing() -> None:
    fields = Fields({"null": None, "one": 1}, "file")
    assert "null" not in fields and "one" in fields
    assert fields.integer("null", 5) == 5 and fields.number("one") == 1.0 and fields.flag("null", True)
    for read in (fields.integer, fields.number):
        with pytest.raises(ModelLoadError, match="file: null is missing"):
            read("null")
