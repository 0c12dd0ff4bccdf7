"""Troubles by name: what components said goes in, what is wrong and what to do comes out.

    troubles = find_troubles(Evidence(pods=pods, events=events, objects=[ray_cluster, claim], logs={"train.log": text}))

Pure: nothing here talks to a cluster, reads a file or a clock. `catalogue` names each trouble, its remedy and the words
by which it is seen, a module of rows for each topic; `observations` turns objects as the API server sends them into
what those words are looked for in; `finding` puts the two together.
"""

from agentic.cluster.troubles.finding import find_troubles, grouped, make_trouble, name_refusal
from agentic.cluster.troubles.kinds import Evidence, Trouble

__all__ = ["Evidence", "Trouble", "find_troubles", "grouped", "make_trouble", "name_refusal"]
