"""A small agent on a vendor's SDK: `STYLE BASE_URL KEY QUESTION...`; asks each question, and runs what it is told to.

Replays history as the SDK's own documentation does: the objects that came, put back as they are.
"""

import json
import subprocess
import sys
from typing import Any

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
FUNCTION = {"name": "bash", "description": "Run a command.", "parameters": SCHEMA}


def bash(command: str) -> str:
    """What a command prints."""
    return subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout


def openai_chat(base_url: str, key: str, questions: list[str], is_streamed: bool) -> str:
    from openai import OpenAI

    completions = OpenAI(base_url=base_url, api_key=key).chat.completions
    shared: dict[str, Any] = {"model": "policy", "tools": [{"type": "function", "function": FUNCTION}]}
    messages: list[Any] = [{"role": "system", "content": "Be brief."}]
    for question in questions:
        messages.append({"role": "user", "content": question})
        while True:
            if is_streamed:
                with completions.stream(messages=messages, **shared) as stream:
                    message = stream.get_final_completion().choices[0].message
            else:
                message = completions.create(messages=messages, **shared).choices[0].message
            messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                output = bash(json.loads(call.function.arguments)["command"])
                messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    return message.content or ""


def litellm_chat(base_url: str, key: str, questions: list[str], is_streamed: bool) -> str:
    import litellm

    shared: dict[str, Any] = {"model": "openai/policy", "api_base": base_url, "api_key": key}
    shared |= {"tools": [{"type": "function", "function": FUNCTION}], "stream": is_streamed}
    messages: list[Any] = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        while True:
            answer = litellm.completion(messages=messages, **shared)
            if is_streamed:
                answer = litellm.stream_chunk_builder(list(answer), messages=messages)
            message = answer.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                output = bash(json.loads(call.function.arguments)["command"])
                messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    return message.content or ""


def openai_responses(base_url: str, key: str, questions: list[str], is_streamed: bool, is_continued: bool) -> str:
    from openai import OpenAI

    responses = OpenAI(base_url=base_url, api_key=key).responses
    shared: dict[str, Any] = {
        "model": "policy",
        "tools": [{"type": "function", **FUNCTION}],
        "instructions": "Be brief.",
    }
    history: list[Any] = []
    previous: str | None = None
    for question in questions:
        new: list[Any] = [{"role": "user", "content": question}]
        while new:
            history += new
            sent = {"input": new, "previous_response_id": previous} if is_continued else {"input": history}
            if is_streamed:
                with responses.stream(**sent, **shared) as stream:
                    answer: Any = stream.get_final_response()
            else:
                answer = responses.create(**sent, **shared)
            previous = answer.id
            history += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in answer.output]
            new = [
                {
                    "type": "function_call_output",
                    "call_id": item.call_id,
                    "output": bash(json.loads(item.arguments)["command"]),
                }
                for item in answer.output
                if item.type == "function_call"
            ]
    return str(answer.output_text)


def anthropic_messages(base_url: str, key: str, questions: list[str], is_streamed: bool) -> str:
    from anthropic import Anthropic

    sdk = Anthropic(base_url=base_url.removesuffix("/v1"), api_key=key).messages
    tool = {"name": "bash", "description": "Run a command.", "input_schema": SCHEMA}
    shared: dict[str, Any] = {"model": "policy", "max_tokens": 1000, "system": "Be brief.", "tools": [tool]}
    messages: list[Any] = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        while messages[-1]["role"] == "user":
            assert sdk.count_tokens(model="policy", messages=messages, tools=[tool]).input_tokens > 0
            if is_streamed:
                with sdk.stream(messages=messages, **shared) as stream:
                    answer = stream.get_final_message()
            else:
                answer = sdk.create(messages=messages, **shared)
            messages.append({"role": "assistant", "content": answer.content})
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": bash(block.input["command"])}
                for block in answer.content
                if block.type == "tool_use"
            ]
            if results:
                messages.append({"role": "user", "content": results})
    return "".join(block.text for block in answer.content if block.type == "text")


STYLES = {
    "openai-chat": lambda *given: openai_chat(*given, is_streamed=False),
    "openai-chat-stream": lambda *given: openai_chat(*given, is_streamed=True),
    "openai-responses": lambda *given: openai_responses(*given, is_streamed=False, is_continued=False),
    "openai-responses-stream": lambda *given: openai_responses(*given, is_streamed=True, is_continued=False),
    "openai-responses-continued": lambda *given: openai_responses(*given, is_streamed=True, is_continued=True),
    "anthropic": lambda *given: anthropic_messages(*given, is_streamed=False),
    "anthropic-stream": lambda *given: anthropic_messages(*given, is_streamed=True),
    "litellm": lambda *given: litellm_chat(*given, is_streamed=False),
    "litellm-stream": lambda *given: litellm_chat(*given, is_streamed=True),
}

if __name__ == "__main__":
    style, base_url, key, *questions = sys.argv[1:]
    sys.stdout.write(STYLES[style](base_url, key, questions) + "\n")
