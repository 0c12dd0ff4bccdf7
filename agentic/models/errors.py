"""What can go wrong while a model is got.

PermanentError
└── ModelError           a setting or folder that cannot become a model
TransientError
└── ModelIncomplete      files are missing or short after a download; what arrived is kept for the next try
"""

from agentic.errors import PermanentError, TransientError


class ModelError(PermanentError):
    """The source cannot become a model: say which file or value, and what to change."""


class ModelIncomplete(TransientError):
    """A download ended before every file was there with its right size."""
