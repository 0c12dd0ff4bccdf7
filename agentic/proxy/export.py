"""Sealed sessions out of a journal: as arrays, as parquet, or as a transcript for a human.

`python -m agentic.proxy export JOURNAL_DIR --format arrays|parquet|transcript --output DIR`. Only reads the journal, so
it may run beside a proxy that writes it. Sessions that are not sealed are counted and left out: they have no digest
yet. So are damaged journals, each of which is named.

- arrays: one `SESSION.npz` for each session. The trajectories lie behind each other; `prompt_offsets` and
  `response_offsets` say where each begins and ends. `session` is the rest of the sealed session as JSON.
- parquet: one `trajectories.parquet`, a row for each trajectory, a row group for each session.
- transcript: one `SESSION.md`, each trajectory's text with what trains marked; needs the model's tokenizer.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from .errors import DamagedJournal, ProxyError
from .journal import SUFFIX, read_records
from .models import SealedSession, Trajectory
from .session import Phase
from .sessions import replay

type Decode = Callable[[Sequence[int]], str]
type Writer = Callable[[Iterable[SealedSession], Path], int]

META = {"trajectories"}
"""What is not repeated in a session's JSON."""


class Skipped:
    """Counts what a journal holds besides sealed sessions."""

    def __init__(self) -> None:
        self.open = 0
        self.damaged = 0


def sealed_sessions(journal: Path, skipped: Skipped) -> Iterator[SealedSession]:
    """The sealed sessions of a journal's folder, those of a fleet's processes included, one at a time."""
    if not journal.is_dir():
        raise ProxyError(f"{journal} is no folder: name the proxy's journal_directory")
    for path in sorted([*journal.glob(f"*{SUFFIX}"), *journal.glob(f"slot-*/*{SUFFIX}")]):
        try:
            session = replay(read_records(path.read_bytes())[0])
        except DamagedJournal as error:
            skipped.damaged += 1
            sys.stderr.write(f"{path} is left out: {error}\n")
            continue
        except ProxyError as error:
            raise ProxyError(f"{path}: {error}") from error
        if session is not None and session.phase is Phase.SEALED:
            yield session.result()
        else:
            skipped.open += 1


def write_arrays(sessions: Iterable[SealedSession], folder: Path) -> int:
    """One `.npz` for each session."""
    import numpy

    count = 0
    for session in sessions:
        trajectories = session.trajectories
        numpy.savez(
            folder / f"{session.session_id}.npz",
            session=numpy.array(session.model_dump_json(exclude=META)),
            prompt_ids=_joined([t.prompt_ids for t in trajectories], "uint32"),
            prompt_offsets=_offsets([t.prompt_ids for t in trajectories]),
            response_ids=_joined([t.response_ids for t in trajectories], "uint32"),
            response_mask=_joined([t.response_mask for t in trajectories], "uint8"),
            response_logprobs=_joined([t.response_logprobs for t in trajectories], "float32"),
            versions=_joined([t.versions for t in trajectories], "int32"),
            response_offsets=_offsets([t.response_ids for t in trajectories]),
        )
        count += 1
    return count


def write_parquet(sessions: Iterable[SealedSession], folder: Path) -> int:
    """One file for all of them."""
    import pyarrow
    from pyarrow import parquet

    schema = pyarrow.schema(
        [
            ("session_id", pyarrow.string()),
            ("digest", pyarrow.string()),
            ("complete", pyarrow.bool_()),
            ("ending", pyarrow.string()),
            ("trajectory", pyarrow.int32()),
            ("prompt_ids", pyarrow.list_(pyarrow.uint32())),
            ("response_ids", pyarrow.list_(pyarrow.uint32())),
            ("response_mask", pyarrow.list_(pyarrow.uint8())),
            ("response_logprobs", pyarrow.list_(pyarrow.float32())),
            ("versions", pyarrow.list_(pyarrow.int32())),
        ]
    )
    count = 0
    with parquet.ParquetWriter(folder / "trajectories.parquet", schema) as writer:
        for session in sessions:
            rows = [_row(session, number, trajectory) for number, trajectory in enumerate(session.trajectories)]
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
            count += 1
    return count


def write_transcripts(sessions: Iterable[SealedSession], folder: Path, decode: Decode) -> int:
    """One `.md` for each session."""
    count = 0
    for session in sessions:
        (folder / f"{session.session_id}.md").write_text("".join(transcript(session, decode)), "utf-8")
        count += 1
    return count


def transcript(session: SealedSession, decode: Decode) -> Iterator[str]:
    """A session as text: what it was, then each trajectory in stretches of one kind."""
    yield f"# Session {session.session_id}\n\n"
    for name, value in session.model_dump(exclude=META | {"session_id"}).items():
        yield f"- {name}: {json.dumps(value)}\n"
    for number, trajectory in enumerate(session.trajectories):
        trained = sum(trajectory.response_mask)
        yield f"\n## Trajectory {number}: {len(trajectory.response_ids)} response tokens, {trained} with loss\n"
        yield from _stretch("prompt", decode(trajectory.prompt_ids))
        start = 0
        kinds = zip(trajectory.response_mask, (version >= 0 for version in trajectory.versions), strict=True)
        for (mask, is_sampled), run in groupby(kinds):
            end = start + len(list(run))
            kind = "sampled, with loss" if mask else "sampled, without loss" if is_sampled else "context"
            yield from _stretch(kind, decode(trajectory.response_ids[start:end]))
            start = end


def main(arguments: list[str]) -> int:
    """The command; 78 for bad input."""
    options = _options(arguments)
    skipped = Skipped()
    try:
        write = _writer(options)
        options.output.mkdir(parents=True, exist_ok=True)
        count = write(sealed_sessions(options.journal, skipped), options.output)
    except (ProxyError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 78
    told = {"sessions": count, "not_sealed": skipped.open, "damaged": skipped.damaged, "output": str(options.output)}
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m agentic.proxy export", description="Write the sealed sessions of a journal."
    )
    parser.add_argument("journal", type=Path, help="the proxy's journal folder")
    parser.add_argument("--format", choices=("arrays", "parquet", "transcript"), required=True, help="what to write")
    parser.add_argument("--output", type=Path, required=True, help="folder to write into; made if it is not there")
    parser.add_argument("--tokenizer", type=Path, help="Hugging Face folder of the model; for transcripts")
    return parser.parse_args(arguments)


def _writer(options: argparse.Namespace) -> Writer:
    match options.format:
        case "arrays":
            return write_arrays
        case "parquet":
            return write_parquet
    if options.tokenizer is None:
        raise ProxyError("--format transcript needs --tokenizer: the journal holds token ids only")
    from .renderers.tokens import load_folder

    tokenizer, _ = load_folder(options.tokenizer)
    return lambda sessions, folder: write_transcripts(
        sessions, folder, lambda ids: tokenizer.decode(ids, keep_special_tokens=True)
    )


def _joined(parts: Iterable[Sequence[float]], dtype: str) -> Any:
    import numpy

    return numpy.array([value for part in parts for value in part], dtype)


def _offsets(parts: Iterable[Sequence[int]]) -> Any:
    import numpy

    return numpy.array([0, *accumulate(len(part) for part in parts)], "int64")


def _row(session: SealedSession, number: int, trajectory: Trajectory) -> dict[str, Any]:
    own = session.model_dump(include={"session_id", "digest", "complete", "ending"})
    return own | {"trajectory": number} | trajectory.model_dump()


def _stretch(kind: str, text: str) -> Iterator[str]:
    fence = "`" * max(3, 1 + max((len(run) for run in _backticks(text)), default=0))
    yield f"\n**{kind}**\n{fence}text\n{text}\n{fence}\n"


def _backticks(text: str) -> Iterator[str]:
    return ("".join(run) for letter, run in groupby(text) if letter == "`")
