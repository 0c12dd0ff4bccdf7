"""What can go wrong between a sample and its trajectories.

PermanentError
├── RolloutConfigError   the job's file is missing, or its settings do not fit together or this machine
├── TaskFolderError      a task's folder is not what it was said to be, or cannot be unpacked safely
├── JournalError         a trial server's journal belongs to another one, or cannot be written
├── TrialServerRefusal   a trial server refused a request for good: no key, or something that it does not allow
├── GradingSetupError    a task, or the environment that it runs in, cannot be graded in a fresh sandbox
├── ChangesRefusedError  what an agent changed cannot be taken to the fresh sandbox: graded as failed
├── ExportError          a sealed session contradicts itself or its budget: a bug, never repaired quietly
└── ToolsError           an agent's prebaked tools are not there, or cannot be made here
TransientError
├── ModelUnavailableError  the agent's model gave no answer (engine, proxy or transport): the rollout is infra
├── GradingTimeError       waiting left the tests less time than they may take: the rollout is infra
├── AgentProgramError      the agent's program inside the sandbox did not work: likewise
├── ToolsUnavailableError  an agent's tools could not be fetched or written just now
└── ProxyUnavailableError  the proxy's control side gave no answer: likewise
"""

from agentic.errors import PermanentError, TransientError


class RolloutConfigError(PermanentError):
    """The rollout job cannot be read, or cannot run as its settings say."""


class TaskFolderError(PermanentError):
    """A task's folder, or an archive of one, cannot be taken."""


class JournalError(PermanentError):
    """The journal of a trial server cannot be owned or written."""


class TrialServerRefusal(PermanentError):
    """A trial server will not do this, however often it is asked."""


class GradingSetupError(PermanentError):
    """Grading cannot work for this task or in this environment, whatever the agent does."""


class ChangesRefusedError(PermanentError):
    """What the agent left in its working folder cannot be taken from there; its own doing, so it failed."""


class ExportError(PermanentError):
    """A sealed session cannot become training rows without changing what was sampled."""


class ToolsError(PermanentError):
    """An agent's prebaked tools are missing, or cannot be made on this machine."""


class ModelUnavailableError(TransientError):
    """The model behind the session's endpoint did not answer."""


class GradingTimeError(TransientError):
    """Grading waited so long for sandboxes that what its tests did not do in the time left says nothing."""


class AgentProgramError(TransientError):
    """The agent's program could not run inside the sandbox, or broke there."""


class ToolsUnavailableError(TransientError):
    """A registry or the disk did not give what an agent's tools need."""


class ProxyUnavailableError(TransientError):
    """The proxy that holds the sessions did not answer."""
