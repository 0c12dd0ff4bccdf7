"""Downloads by the hubs' own clients, into a folder that survives a cut connection.

Both clients check what they have against the hub and fetch the rest, so calling again goes on. What counts as done is
not theirs to say: the caller checks the folder.
"""

import os
from pathlib import Path

from agentic.models.errors import ModelError, ModelIncomplete
from agentic.models.settings import HuggingFaceModel, ModelScopeModel

UNWANTED = ("*.bin", "*.pt", "*.pth", "*.msgpack", "*.h5", "*.onnx", "*.gguf", "original/*")
"""Other formats of the same weights; safetensors is what is used."""


def download_from_modelscope(settings: ModelScopeModel, folder: Path) -> None:
    from modelscope import snapshot_download
    from modelscope_hub.errors import HubError, NotExistError

    try:
        snapshot_download(
            settings.id,
            revision=settings.revision,
            local_dir=str(folder),
            endpoint=settings.endpoint,
            ignore_patterns=list(UNWANTED),
        )
    except (HubError, OSError) as error:
        if _has_cause(error, NotExistError):
            raise ModelError(f"ModelScope has no {settings.id}: correct model.id or model.revision") from error
        raise ModelIncomplete(_cut(settings.id, "ModelScope", error)) from error


def download_from_huggingface(settings: HuggingFaceModel, folder: Path) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        snapshot_download(
            settings.id,
            revision=settings.revision,
            local_dir=folder,
            endpoint=settings.endpoint,
            token=_token(settings),
            ignore_patterns=list(UNWANTED),
        )
    except GatedRepoError as error:
        raise ModelError(f"{settings.id} is gated: name a variable with a token in model.token_variable") from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise ModelError(f"the hub has no {settings.id}: correct model.id or model.revision") from error
    except (HfHubHTTPError, OSError) as error:
        raise ModelIncomplete(_cut(settings.id, "the hub", error)) from error


def _has_cause(error: BaseException | None, kind: type[BaseException]) -> bool:
    """ModelScope's client wraps its own errors in the HTTP library's."""
    while error is not None:
        if isinstance(error, kind):
            return True
        error = error.__cause__ or error.__context__
    return False


def _token(settings: HuggingFaceModel) -> str | None:
    if settings.token_variable is None:
        return None
    token = os.environ.get(settings.token_variable)
    if not token:
        raise ModelError(f"model.token_variable names {settings.token_variable}, which is not set: set it")
    return token


def _cut(model: str, hub: str, error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return f"downloading {model} from {hub} was cut ({lines[0][:160]}): run the step again to go on"
