"""Downloads by the hubs' real clients from a hub on loopback that loses connections."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_double import MODEL, Hub, serve

from agentic.models.completeness import find_problems
from agentic.models.errors import ModelError, ModelIncomplete
from agentic.models.prepare import prepare
from agentic.models.settings import HuggingFaceModel, ModelScopeModel

# The first test pays for the imports, which take long on a machine that is busy otherwise.
pytestmark = pytest.mark.timeout(240)

type HubModel = HuggingFaceModel | ModelScopeModel


def shard(tensors: dict[str, int]) -> bytes:
    """A safetensors file of float32 vectors."""
    header, end = {}, 0
    for name, length in tensors.items():
        header[name] = {"dtype": "F32", "shape": [length], "data_offsets": [end, end + 4 * length]}
        end += 4 * length
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end)


FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    ).encode(),
    "model-1-of-2.safetensors": shard({"a": 1000}),
    "model-2-of-2.safetensors": shard({"b": 6_000_000}),
    "pytorch_model.bin": b"other format",
}
# Larger than the clients' chunks (10 MiB), or nothing would be kept of a cut download.
LARGE = "model-2-of-2.safetensors"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with serve(FILES) as hub:
        yield hub


def settings_for(source: str, hub: Hub, model: str = MODEL) -> HubModel:
    kind = HuggingFaceModel if source == "huggingface" else ModelScopeModel
    return kind(id=model, name="model", endpoint=hub.address)


def quiet(done: int, total: int, message: str) -> None:
    assert 0 <= done <= total, message


@pytest.mark.parametrize("source", ["huggingface", "modelscope"])
def test_a_cut_connection_is_taken_up_where_it_broke(hub: Hub, tmp_path: Path, source: str) -> None:
    hub.cuts[LARGE] = [16_000_000]
    summary = prepare(settings_for(source, hub), None, tmp_path / "models/model", quiet)
    assert summary.parameters == 6_001_000
    assert not find_problems(tmp_path / "models/model")
    assert not (tmp_path / "models/model/pytorch_model.bin").exists()
    starts = [wanted for name, wanted in hub.ranges if name == LARGE]
    assert len(starts) == 2
    assert starts[1] is not None
    assert int(starts[1].removeprefix("bytes=").rstrip("-").partition("-")[0]) > 0


@pytest.mark.parametrize("source", ["huggingface", "modelscope"])
def test_a_failed_step_leaves_no_model_and_the_next_one_fetches_the_rest(hub: Hub, tmp_path: Path, source: str) -> None:
    out = tmp_path / "models/model"
    hub.refused.add(LARGE)
    with pytest.raises(ModelIncomplete, match="run the step again"):
        prepare(settings_for(source, hub), None, out, quiet)
    assert not out.exists()
    fetched = {name for name, _ in hub.ranges} - {LARGE}
    hub.refused.clear()
    hub.ranges.clear()
    assert prepare(settings_for(source, hub), None, out, quiet).parameters == 6_001_000
    again = {name for name, _ in hub.ranges}
    assert LARGE in again
    assert fetched - again, "what had arrived was fetched again"
    assert sorted(path.name for path in out.parent.iterdir()) == [".model.lock", "model"]


@pytest.mark.parametrize("source", ["huggingface", "modelscope"])
def test_a_finished_model_is_not_asked_for_again(hub: Hub, tmp_path: Path, source: str) -> None:
    out = tmp_path / "models/model"
    prepare(settings_for(source, hub), None, out, quiet)
    hub.ranges.clear()
    assert prepare(settings_for(source, hub), None, out, quiet).reused
    assert hub.ranges == []


def test_a_download_never_writes_through_a_link_that_a_killed_run_left(hub: Hub, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.mkdir()
    (tmp_path / ".model.partial").symlink_to(users, target_is_directory=True)
    prepare(settings_for("huggingface", hub), None, tmp_path / "model", quiet)
    assert list(users.iterdir()) == []
    assert not (tmp_path / "model").is_symlink()


@pytest.mark.parametrize("source", ["huggingface", "modelscope"])
def test_an_unknown_model_is_a_permanent_error(hub: Hub, tmp_path: Path, source: str) -> None:
    with pytest.raises(ModelError, match=r"no owner/other: correct model\.id"):
        prepare(settings_for(source, hub, "owner/other"), None, tmp_path / "model", quiet)


def test_a_model_whose_index_names_more_than_the_hub_has_is_not_complete(hub: Hub, tmp_path: Path) -> None:
    del hub.files["model-1-of-2.safetensors"]
    with pytest.raises(ModelIncomplete, match=r"model-1-of-2\.safetensors is missing"):
        prepare(settings_for("huggingface", hub), None, tmp_path / "model", quiet)
    assert not (tmp_path / "model").exists()


def test_a_token_is_read_from_the_named_variable(hub: Hub, tmp_path: Path) -> None:
    settings = HuggingFaceModel(id=MODEL, endpoint=hub.address, token_variable="NO_SUCH_TOKEN")
    with pytest.raises(ModelError, match="NO_SUCH_TOKEN, which is not set"):
        prepare(settings, None, tmp_path / "model", quiet)
