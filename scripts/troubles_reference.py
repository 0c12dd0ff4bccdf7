"""Prints docs/troubles.md: every trouble of the catalogue, by topic.

`make docs` writes it, and a test fails when that file is not what this prints.
"""

import sys
from collections.abc import Iterator

from agentic.cluster.troubles.catalogue import TOPICS
from agentic.cluster.troubles.kinds import Kind

HEAD = """\
# Troubles by name

    python workflows/submit.py doctor          before a run: what would stop it on the cluster
    python workflows/submit.py explain RUN     after one failed, here or on the cluster: why

Both print each trouble by the name it has below, where it is, what was said there, and one line that says what to do;
with `--json` for programs. The exit code is 0 when nothing is found, 78 when a trouble stays until somebody acts, and
75 when all of them may pass. While the RayCluster starts, `launch-cluster` names what keeps it from getting ready.

`doctor` asks the API server (does it answer, do the clocks agree, each right that is needed, each kind and its
version), the nodes (are they ready, does each pod of the run fit and which would at most, are the GPUs new enough), the
storage (claims, classes, zones, disk categories, sizes), the Secrets for registries, Kueue's queue where
`cluster.queue` names one, and the cluster's admission by a dry run of each kind of pod. Then it starts one short pod
that tries to reach what the run needs: the hub of models, GitHub for Harbor's data sets, the package index, BuildKit.
It changes nothing else, runs every check whatever the others found, and says what it could not look at, because the
account may not or because only pods of the run can.

The step `preflight` looks from within: by the pod's own account at all of that but other people's controllers, nodes
and pods; into the claims (are model and data set complete, is there room for the checkpoints, by an estimate from the
model); and it starts a sandbox that tries the proxy's port. What may pass by itself it tells and does not end for,
since later steps wait for it.

`explain` reads the conditions of the run's objects, the events about them, the ends of the logs of what failed, and,
where pods are gone, the same from the volume; for a run on this machine, the logs of the steps that did not end.
Rewards and lost rollouts it takes from the records. What a later try made good is no trouble.

"Seen in" says whose words show a trouble: the sources are named row by row in `agentic/cluster/troubles/`, and a test
quotes each. Where it says `doctor`, a check finds it before anything fails, and where it says `explain`, what the run
left shows it.
"""


def render() -> str:
    return "\n".join([HEAD, *(line for topic, kinds in TOPICS.items() for line in _table(topic, kinds))])


def _table(topic: str, kinds: tuple[Kind, ...]) -> Iterator[str]:
    yield from (f"## {topic}", "", "| name | what is wrong | what to do | seen in |", "|---|---|---|---|")
    for kind in kinds:
        passes = " (may pass by itself)" if kind.transient else ""
        yield f"| `{kind.name}` | {_cell(kind.seen)}{passes} | {_cell(kind.remedy)} | {_cell(_seen_in(kind))} |"
    yield ""


def _seen_in(kind: Kind) -> str:
    components = [part.strip().split(",")[0] for sign in kind.signs for part in sign.source.split(";")]
    return ", ".join(dict.fromkeys(components)) or kind.found_by


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(render())
