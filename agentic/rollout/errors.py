"""What can go wrong between a sample and its trajectories.

PermanentError
├── RolloutConfigError   the job's file is missing, or its settings do not fit together or this machine
└── ExportError          a sealed session contradicts itself or its budget: a bug, never repaired quietly
TransientError
├── ModelUnavailableError  the agent's model gave no answer (engine, proxy or transport): the rollout is infra
├── AgentProgramError      the agent's program inside the sandbox did not work: likewise
└── ProxyUnavailableError  the proxy's control side gave no answer: likewise
"""

from agentic.errors import PermanentError, TransientError


class RolloutConfigError(PermanentError):
    """The rollout job cannot be read, or cannot run as its settings say."""


class ExportError(PermanentError):
    """A sealed session cannot become training rows without changing what was sampled."""


class ModelUnavailableError(TransientError):
    """The model behind the session's endpoint did not answer."""


class AgentProgramError(TransientError):
    """The agent's program could not run inside the sandbox, or broke there."""


class ProxyUnavailableError(TransientError):
    """The proxy that holds the sessions did not answer."""
