"""A run's folder → one self-contained HTML file with pictures, and the same figures as JSON.

It reads files and draws: no training stack, no network, nothing of ours but errors. So a report can be written of any
run at any time, also of one that broke. `write` is the step's entry; `python -m agentic.report.comparison` sets several
runs side by side.
"""

from agentic.report.page import write

__all__ = ["write"]
