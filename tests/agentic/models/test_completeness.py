"""A model folder is whole only when every byte that its own files promise is there."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentic.models.completeness import count_parameters, find_problems, require_complete
from agentic.models.errors import ModelError, ModelIncomplete
from agentic.models.prepare import prepare
from agentic.models.settings import PathModel, SmolLM2Model


def shard(tensors: dict[str, list[int]]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in tensors.items():
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end)


FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    ).encode(),
    "one.safetensors": shard({"a": [3, 4]}),
    "two.safetensors": shard({"b": [5]}),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    return folder


def quiet(done: int, total: int, message: str) -> None:
    assert 0 <= done <= total, message


def test_a_whole_model_has_no_problems(model: Path) -> None:
    assert find_problems(model) == []
    assert count_parameters(model) == 17
    require_complete(model)


@pytest.mark.parametrize("name", FILES)
def test_each_missing_file_is_named(model: Path, name: str) -> None:
    (model / name).unlink()
    expected = {"tokenizer.json": "no tokenizer", "model.safetensors.index.json": "model.safetensors is missing"}
    assert any(expected.get(name, name) in problem for problem in find_problems(model))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(set(FILES) - {"tokenizer.json"})), data=st.data())
def test_a_file_cut_at_any_byte_is_noticed(model: Path, name: str, data: st.DataObject) -> None:
    whole = FILES[name]
    length = data.draw(st.integers(0, len(whole) - 1))
    (model / name).write_bytes(whole[:length])
    try:
        assert find_problems(model)
        with pytest.raises(ModelIncomplete, match="run the step again"):
            require_complete(model)
    finally:
        (model / name).write_bytes(whole)


def test_a_shard_with_bytes_to_spare_or_without_its_tensor_is_noticed(model: Path) -> None:
    (model / "one.safetensors").write_bytes(FILES["one.safetensors"] + b"\0")
    assert "one.safetensors has" in find_problems(model)[0]
    (model / "one.safetensors").write_bytes(FILES["two.safetensors"])
    assert "one.safetensors lacks a" in find_problems(model)[0]


def test_a_shard_outside_the_folder_is_no_shard(model: Path) -> None:
    (model / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../one.safetensors"}}')
    assert find_problems(model) == ["model.safetensors.index.json is cut or no index"]


def test_a_local_model_is_linked_and_left_alone(model: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in model.iterdir())
    out = tmp_path / "models" / "local"
    for _ in range(2):
        assert prepare(PathModel(path=str(model)), None, out, quiet).parameters == 17
    assert out.resolve() == model
    assert sorted(path.name for path in model.iterdir()) == before


def test_a_local_model_that_is_not_whole_is_refused(model: Path, tmp_path: Path) -> None:
    (model / "two.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no whole model: two\.safetensors is missing"):
        prepare(PathModel(path=str(model)), None, tmp_path / "local", quiet)
    with pytest.raises(ModelError, match="is no folder"):
        prepare(PathModel(path=str(tmp_path / "nowhere")), None, tmp_path / "local", quiet)


@pytest.mark.e2e
def test_smollm2_is_converted_with_its_end_of_turn(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    out = tmp_path / "smollm2"
    summary = prepare(SmolLM2Model(dtype="bfloat16"), None, out, quiet)
    assert 130_000_000 < summary.parameters < 140_000_000
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert AutoConfig.from_pretrained(out).eos_token_id == tokenizer.eos_token_id
    assert GenerationConfig.from_pretrained(out).eos_token_id == tokenizer.eos_token_id
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
