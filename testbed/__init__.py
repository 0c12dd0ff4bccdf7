"""A real Kubernetes control plane on this machine, for tests and benchmarks; nothing of it is used in production.

`python -m testbed up` builds what it needs once (tools.py), gives the cluster a network namespace of its own
(network.py) and starts the table of components (components.py): etcd, API server, controllers, scheduler, a node whose
pods really run, and kwok for thousands that only say so. `python -m testbed down` leaves nothing.
docs/cluster-for-tests.md has the rest.
"""
