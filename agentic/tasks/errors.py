"""What can go wrong while a data set is made.

PermanentError
└── DataError            a folder, row or setting that cannot become tasks
TransientError
└── DownloadIncomplete   the download command failed or tasks are still missing
"""

from agentic.errors import PermanentError, TransientError


class DataError(PermanentError):
    """The source cannot become a data set: say which file or value, and what to change."""


class DownloadIncomplete(TransientError):
    """Tasks are missing after the last attempt; what arrived is kept for the next one."""
