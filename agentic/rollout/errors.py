"""What can go wrong between a sample and its trajectories.

PermanentError
├── RolloutConfigError   the job's file is missing or does not fit
└── ExportError          a sealed session contradicts itself or its budget: a bug, never repaired quietly
TransientError
├── ModelUnavailableError  the agent's model gave no answer (engine, proxy or transport): the rollout is infra
└── ProxyUnavailableError  the proxy's control side gave no answer: likewise
"""

from agentic.errors import PermanentError, TransientError


class RolloutConfigError(PermanentError):
    """The rollout job cannot be read."""


class ExportError(PermanentError):
    """A sealed session cannot become training rows without changing what was sampled."""


class ModelUnavailableError(TransientError):
    """The model behind the session's endpoint did not answer."""


class ProxyUnavailableError(TransientError):
    """The proxy that holds the sessions did not answer."""
