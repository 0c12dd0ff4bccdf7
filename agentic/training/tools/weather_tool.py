"""The tool of verl's tutorial: a weather report that never changes, to see a tool call go round."""

import json
from typing import Any, Literal, override

from transformers.utils import get_json_schema
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

CELSIUS = 26.1


def get_current_temperature(location: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> dict[str, Any]:
    """
    Get current temperature at a location.

    Args:
        location: The location to get the temperature for, in the format "City, State, Country".
        unit: The unit to return the temperature in.

    Returns:
        The temperature, the location, and the unit.
    """
    temperature = CELSIUS if unit == "celsius" else round(CELSIUS * 9 / 5 + 32, 1)
    return {"temperature": temperature, "location": location, "unit": unit}


class WeatherTool(BaseTool):  # type: ignore[misc]
    """`get_current_temperature` as verl's tool."""

    @override
    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        """Read from the function's signature and docstring."""
        return OpenAIFunctionToolSchema.model_validate(get_json_schema(get_current_temperature))

    @override
    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Nothing has to be kept for a trajectory."""
        made: tuple[str, ToolResponse] = await super().create(instance_id, **kwargs)
        return made

    @override
    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """The report; wrong arguments are told to the model."""
        try:
            report = get_current_temperature(**parameters)
        except TypeError as error:
            return ToolResponse(text=f"Error: {error}"), 0.0, {}
        return ToolResponse(text=json.dumps(report)), 0.0, {}

    @override
    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """A weather report earns nothing."""
        return 0.0

    @override
    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Nothing is kept."""
