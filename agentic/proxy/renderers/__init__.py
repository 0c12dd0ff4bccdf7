"""Renderers, and the choice of one for a tokenizer."""

from pathlib import Path
from typing import Any

from .base import HeldTurn, Renderer, ReplyParser

__all__ = ["HeldTurn", "Renderer", "ReplyParser", "make_renderer"]


def make_renderer(tokenizer_or_path: Any) -> Renderer:
    """The renderer for a Hugging Face folder (str or Path) or a tokenizer object of transformers.

    A family that the library `renderers` writes out by hand is rendered by it; everything else by its chat template.
    System texts after the start are the user's for a model that is not shown them otherwise.
    """
    from .library import find_library_renderer
    from .notes import NotesAsUser, takes_notes
    from .template import TemplateRenderer
    from .tokens import from_tokenizer, load_folder

    if isinstance(tokenizer_or_path, str | Path):
        tokenizer, files = load_folder(Path(tokenizer_or_path))
        name = str(tokenizer_or_path)
    else:
        tokenizer, files = from_tokenizer(tokenizer_or_path)
        name = str(getattr(tokenizer_or_path, "name_or_path", ""))
    found: Renderer = find_library_renderer(name, tokenizer, files) or TemplateRenderer(tokenizer, files)
    return found if takes_notes(found) else NotesAsUser(found)
