"""Sealed sessions out of a journal: arrays and parquet hold what sealing gave, a transcript can be read."""

import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from proxy_rig import a_spec, running, says, user
from pyarrow import parquet

from agentic.proxy import SealedSession
from agentic.proxy.export import main


@pytest.fixture
async def sealed(tiny_folder: Path, tmp_path: Path) -> SealedSession:
    """A sealed session of two branches, in a journal beside one that is still open."""
    journal = tmp_path / "journal"
    async with running(tiny_folder, [says("one"), says("```left"), says("right")], journal_directory=journal) as rig:
        await rig.server.open(a_spec("still-open"))
        handle = await rig.server.open(a_spec())
        first = await rig.ask(handle, [user("hi")])
        for text in ("left", "right"):
            await rig.ask(handle, [user("hi"), first.message, user(text)])
        return await rig.server.seal("rollout-1")


def export(kind: str, tmp_path: Path, *more: str) -> Path:
    output = tmp_path / kind
    assert main([str(tmp_path / "journal"), "--format", kind, "--output", str(output), *more]) == 0
    return output


def test_arrays_hold_every_trajectory(sealed: SealedSession, tmp_path: Path) -> None:
    (path,) = export("arrays", tmp_path).iterdir()
    assert path.name == "rollout-1.npz"
    with numpy.load(path) as arrays:
        assert json.loads(str(arrays["session"]))["digest"] == sealed.digest
        for number, trajectory in enumerate(sealed.trajectories):
            prompts, responses = ([int(n) for n in arrays[f"{name}_offsets"]] for name in ("prompt", "response"))
            here = slice(responses[number], responses[number + 1])
            assert arrays["prompt_ids"][prompts[number] : prompts[number + 1]].tolist() == trajectory.prompt_ids
            assert arrays["response_ids"][here].tolist() == trajectory.response_ids
            assert arrays["response_mask"][here].tolist() == trajectory.response_mask
            assert arrays["response_logprobs"][here].tolist() == trajectory.response_logprobs
            assert arrays["versions"][here].tolist() == trajectory.versions


def test_parquet_has_a_row_for_each_trajectory(sealed: SealedSession, tmp_path: Path) -> None:
    rows = parquet.read_table(export("parquet", tmp_path) / "trajectories.parquet").to_pylist()
    assert [row["response_ids"] for row in rows] == [t.response_ids for t in sealed.trajectories]
    assert [row["response_logprobs"] for row in rows] == [t.response_logprobs for t in sealed.trajectories]
    assert {(row["session_id"], row["digest"]) for row in rows} == {("rollout-1", sealed.digest)}


def test_a_transcript_shows_what_trains(sealed: SealedSession, tiny_folder: Path, tmp_path: Path) -> None:
    text = (export("transcript", tmp_path, "--tokenizer", str(tiny_folder)) / "rollout-1.md").read_text()
    assert sealed.digest in text
    assert "**prompt**\n```text\n<|im_start|>user\nhi" in text
    assert "**sampled, with loss**\n```text\none<|im_end|>\n```" in text
    assert "**sampled, with loss**\n````text\n```left<|im_end|>\n````" in text
    assert "**sampled, without loss**\n```text\none<|im_end|>" in text, "the shared turn trains in the first path only"


def test_the_command_says_what_it_wrote_and_what_it_left_out(
    sealed: SealedSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export("parquet", tmp_path)
    told = json.loads(capsys.readouterr().out)
    assert (told["sessions"], told["not_sealed"]) == (1, 1)


@pytest.mark.parametrize("missing", ["--tokenizer", "folder"])
def test_what_is_missing_is_named(missing: str, tmp_path: Path) -> None:
    journal = tmp_path / "nowhere"
    if missing == "--tokenizer":
        journal.mkdir()
    kind = "transcript" if missing == "--tokenizer" else "arrays"
    command = [sys.executable, "-m", "agentic.proxy", "export", str(journal), "--format", kind]
    done = subprocess.run([*command, "--output", str(tmp_path / "out")], capture_output=True, text=True, check=False)
    assert (done.returncode, missing in done.stderr, done.stderr.count("\n")) == (78, True, 1)
