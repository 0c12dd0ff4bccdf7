"""What can end a training job.

TrainingError(PermanentError)        verl stopped with an error that another try would meet again
TrainingInterrupted(TransientError)  verl or Ray was killed or went away: trying again resumes from a checkpoint
EngineStartError(TransientError)     vLLM did not become ready in time
SizingError(PermanentError)          settings that cannot run; the message names the nearest that can
HeadUnreachableError(TransientError) Ray's head gives no usable answer; its jobs may go on all the same
HeadRefusedError(PermanentError)     Ray's head takes no such request: the token, or the job
HeadLostError(TransientError)        the head that a job ran on is gone, and the job with it: trying again resumes
"""

from agentic.errors import PermanentError, TransientError


class TrainingError(PermanentError):
    """verl refused its input or failed in a way that does not depend on the moment."""


class TrainingInterrupted(TransientError):
    """The trainer went away before its last step; its checkpoints are kept."""


class EngineStartError(TransientError):
    """The inference engine did not answer in time; its log says why."""


class SizingError(PermanentError):
    """A combination of model, GPUs and batch that cannot run."""


class HeadUnreachableError(TransientError):
    """Ray's head does not answer, or not in a form that is known."""


class HeadRefusedError(PermanentError):
    """Ray's head refused a request for what it is."""


class HeadLostError(TransientError):
    """The pod, or the process, that a job ran in is gone."""
