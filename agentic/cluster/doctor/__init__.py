"""Looking at a cluster before a run does: everything that would stop it, by name, in one go.

    report = await examine(client, facts, on_progress)
    report.troubles, report.skipped

A check looks at one thing and returns troubles of the catalogue (`agentic.cluster.troubles`). All checks run, whatever
the others found; what the account may not read is said as skipped, and is no trouble. Nothing is changed, except that
`probing` starts one short pod where it is asked for. What a run needs comes in as `Facts`: settings, and numbers that
other rooms computed.
"""

from agentic.cluster.doctor.examining import Check, Report, examine
from agentic.cluster.doctor.facts import Facts, ImageUse, PodNeed, Target

__all__ = ["Check", "Facts", "ImageUse", "PodNeed", "Report", "Target", "examine"]
