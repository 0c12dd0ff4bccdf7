"""`code_interpreter`: a tool that runs the model's Python code at a code sandbox (`/run_code`).

In a tool configuration file:

    {"tools": [{"class_name": "agentic.training.tools.sandbox_tool.SandboxTool",
                "config": {"type": "native", "sandbox_fusion_url": "http://127.0.0.1:8660/run_code"}}]}

What the code does wrong goes to the model as text. A service that cannot be reached is nobody's mistake: the tool marks
the trajectory as lost and raises, and the loop leaves it out instead of grading it.
"""

import asyncio
import re
from typing import Any, Literal, override

import aiohttp
from pydantic import Field, ValidationError, field_validator
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from agentic.errors import PermanentError, TransientError
from agentic.rollout.agents.code_text import CODE_TOOL, NO_CODE, extract_code, print_last_expression, shown
from agentic.settings import Settings

LOST = "lost_because"
"""Key of `agent_data.extra_fields` that holds why a trajectory says nothing about the policy."""
BUSY, FAILED = 429, 503
_PAUSE_SECONDS = 0.2


class SandboxUnavailableError(TransientError):
    """The code sandbox gave no answer."""


class SandboxToolConfig(Settings):
    """The `config` of the tool."""

    type: Literal["native"] = "native"
    """verl's kind of tool."""
    sandbox_fusion_url: str
    """Where code is run, such as `http://127.0.0.1:8660/run_code`."""
    key: str | None = None
    """Sent as `Authorization: Bearer`."""
    run_seconds: float | None = Field(None, gt=0)
    """Time of one run; may only lower the service's own limit."""
    answer_seconds: float = Field(50.0, gt=0)
    """How long the service may take, waiting for its turn included; then the trajectory is lost."""
    success_reward: float = 0.0
    """Tool reward of a call whose code ended without an error."""

    @field_validator("sandbox_fusion_url")
    @classmethod
    def _is_a_url(cls, url: str) -> str:
        if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", url):
            raise ValueError(f"sandbox_fusion_url is {url!r}: give an address such as http://127.0.0.1:8660/run_code")
        return url


class SandboxTool(BaseTool):  # type: ignore[misc]
    """Runs code; keeps the rewards of a trajectory's calls until it is released."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None) -> None:
        try:
            self._settings = SandboxToolConfig.model_validate(config)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise PermanentError(f"the config of SandboxTool is wrong at {where}: {first['msg']}") from error
        self._rewards: dict[str, list[float]] = {}
        super().__init__(config, tool_schema)

    @override
    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        """`code_interpreter(code)`."""
        return OpenAIFunctionToolSchema.model_validate(CODE_TOOL)

    @override
    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Begin a trajectory's account of rewards."""
        made: str
        made, response = await super().create(instance_id)
        self._rewards[made] = []
        return made, response

    @override
    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """What the code printed, or what was wrong with it; its reward; whether it worked."""
        code = parameters.get("code")
        if not isinstance(code, str):
            return ToolResponse(text=NO_CODE), 0.0, {}
        answer = await self._ask(print_last_expression(extract_code(code)), kwargs.get("agent_data"))
        succeeded = answer.get("status") == "Success"
        reward = self._settings.success_reward if succeeded else 0.0
        self._rewards.setdefault(instance_id, []).append(reward)
        return ToolResponse(text=_shown(answer)), reward, {"code_succeeded": float(succeeded)}

    @override
    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """The sum over the calls so far."""
        return sum(self._rewards.get(instance_id, []))

    @override
    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Close the account. May be repeated."""
        self._rewards.pop(instance_id, None)

    async def _ask(self, code: str, agent_data: Any) -> dict[str, Any]:
        body: dict[str, Any] = {"code": code, "run_timeout": self._settings.run_seconds}
        headers = {"Authorization": f"Bearer {self._settings.key}"} if self._settings.key else {}
        try:
            async with asyncio.timeout(self._settings.answer_seconds), aiohttp.ClientSession(headers=headers) as client:
                while (answer := await self._post(client, body)) is None:
                    await asyncio.sleep(_PAUSE_SECONDS)
                return answer
        except (aiohttp.ClientError, TimeoutError, SandboxUnavailableError) as error:
            reason = f"the code sandbox at {self._settings.sandbox_fusion_url} gave no answer: {error!r}"
            if agent_data is not None:
                agent_data.extra_fields[LOST] = reason
            raise SandboxUnavailableError(reason) from error

    async def _post(self, client: aiohttp.ClientSession, body: dict[str, Any]) -> dict[str, Any] | None:
        """The answer; None when the service asks to come again."""
        async with client.post(self._settings.sandbox_fusion_url, json=body) as response:
            return None if response.status in (BUSY, FAILED) else await _read(response)


async def _read(response: aiohttp.ClientResponse) -> dict[str, Any]:
    if response.status == 413:
        return {"status": "Failed", "message": (await response.json())["detail"]}
    if response.status != 200:
        raise SandboxUnavailableError(f"HTTP {response.status}: {(await response.text())[:200]}")
    answer = await response.json()
    if not isinstance(answer, dict):
        raise SandboxUnavailableError(f"an answer that is no object: {str(answer)[:200]}")
    return answer


def _shown(answer: dict[str, Any]) -> str:
    run = answer.get("run_result") or {}
    return shown(str(run.get("stdout") or ""), str(run.get("stderr") or ""), str(answer.get("message") or ""))
