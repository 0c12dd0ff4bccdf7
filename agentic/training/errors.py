"""What can end a training job.

TrainingError(PermanentError)       verl stopped with an error that another try would meet again
TrainingInterrupted(TransientError) verl or Ray was killed or went away: trying again resumes from a checkpoint
EngineStartError(TransientError)    vLLM did not become ready in time
SizingError(PermanentError)         settings that cannot run; the message names the nearest that can
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
