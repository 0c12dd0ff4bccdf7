"""The base of every settings model: frozen, unknown keys refused, field docstrings used as descriptions."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A frozen settings section; each field is followed by a docstring with unit, default's meaning and relations."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
