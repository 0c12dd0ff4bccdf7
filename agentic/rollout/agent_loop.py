"""`remote_agent`: verl's agent loop, one instance per sample, that runs an agent of any kind in a sandbox elsewhere.

verl calls `run` with a row of its data set and takes back the trajectories. Between the two lie a session at the run's
proxy and a trial at the run's trial runner, two named Ray actors that whichever worker comes first makes; a worker
itself starts no process and runs no agent. Every rollout leaves a record. One that infrastructure lost returns an empty
list: verl then knows no trajectory of this sample, and the group's mean and standard deviation are those of the others.
"""

import asyncio
import functools
from collections.abc import Mapping
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register

from agentic.proxy import Sampling
from agentic.rollout.agent_loop_config import RolloutJob, load_job, phase_of
from agentic.rollout.export import agent_loop_outputs, training_rows
from agentic.rollout.folder import leave_folders
from agentic.rollout.proxy_actor import proxy_of_run
from agentic.rollout.proxy_socket import sandbox_environment
from agentic.rollout.records import Phase, append_record
from agentic.rollout.rollouts import RolloutRequest, make_record, run_rollout
from agentic.rollout.runner_actor import trials_of_run


@register("remote_agent")
class RemoteAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """One rollout of one row."""

    def __init__(self, *, server_manager: Any, tokenizer: Any, **_others: Any) -> None:
        """Not verl's own, which makes what puts tokens together for each sample, and warns where it does not know the
        model's family: the session's proxy does that here."""
        self.server_manager, self.tokenizer = server_manager, tokenizer

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """The sample's trajectories; none when it was lost to infrastructure."""
        job = load_job()
        phase = phase_of(row["extra_info"]["split"])
        request = self.request_of(job, phase, sampling_params, row)
        proxy = proxy_of_run(job, self.server_manager)
        trials = trials_of_run(job)
        result = await run_rollout(request, job.rollout, proxy, trials)
        rows = training_rows(result)
        record = make_record(result, tuple(row.digest for row in rows))
        await asyncio.to_thread(append_record, job.run_dir, record)
        decode = functools.partial(self.tokenizer.decode, skip_special_tokens=True)
        await asyncio.to_thread(leave_folders, result, job.rollout, decode)
        return agent_loop_outputs(result, rows)

    def request_of(
        self, job: RolloutJob, phase: Phase, sampling_params: Mapping[str, Any], row: Mapping[str, Any]
    ) -> RolloutRequest:
        """What is rolled out; who measures loops puts an environment of its own into it."""
        return rollout_request(job, phase, sampling_params, row)


def rollout_request(
    job: RolloutJob, phase: Phase, sampling_params: Mapping[str, Any], row: Mapping[str, Any]
) -> RolloutRequest:
    """What verl's row and sampling parameters ask for. The id is that of verl's own keys, without the trajectory."""
    extra = row["extra_info"]
    return RolloutRequest(
        rollout_id=f"{row['uid']}_{row['session_id']}",
        phase=phase,
        step=int(row["global_steps"]),
        task=extra["task"],
        split=extra["split"],
        task_dir=str(job.task_dir(extra["task"])),
        trials_dir=str(job.trials_dir),
        sampling=Sampling(
            temperature=sampling_params["temperature"],
            top_p=sampling_params["top_p"],
            top_k=sampling_params["top_k"],
            repetition_penalty=sampling_params["repetition_penalty"],
            max_tokens=job.rollout.max_call_tokens,
        ),
        prompt_tokens=job.max_prompt_tokens,
        response_tokens=job.max_response_tokens,
        environment=sandbox_environment(job.rollout.agent, job.proxy),
    )
