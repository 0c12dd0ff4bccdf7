"""A conversation by a vendor's SDK, streamed: `STYLE BASE_URL KEY QUESTION...`; prints the last answer."""

import sys
from typing import Any


def openai_chat(base_url: str, key: str, questions: list[str]) -> str:
    """Chat completions; messages go back as they came."""
    from openai import OpenAI

    messages: list[Any] = []
    with OpenAI(base_url=base_url, api_key=key) as client:
        for question in questions:
            messages.append({"role": "user", "content": question})
            with client.chat.completions.stream(model="policy", messages=messages) as stream:
                message = stream.get_final_completion().choices[0].message
            messages.append({"role": "assistant", "content": message.content})
    return message.content or ""


def openai_responses(base_url: str, key: str, questions: list[str]) -> str:
    """Responses, each continuing the one before by its id."""
    from openai import OpenAI

    previous: str | None = None
    with OpenAI(base_url=base_url, api_key=key) as client:
        for question in questions:
            with client.responses.stream(model="policy", input=question, previous_response_id=previous) as stream:
                answer = stream.get_final_response()
            previous = answer.id
    return answer.output_text


def anthropic_messages(base_url: str, key: str, questions: list[str]) -> str:
    """Messages; content blocks go back as they came."""
    from anthropic import Anthropic

    messages: list[Any] = []
    with Anthropic(base_url=base_url.removesuffix("/v1"), api_key=key) as client:
        for question in questions:
            messages.append({"role": "user", "content": question})
            with client.messages.stream(model="policy", max_tokens=1000, messages=messages) as stream:
                answer = stream.get_final_message()
            messages.append({"role": "assistant", "content": answer.content})
    return "".join(block.text for block in answer.content if block.type == "text")


STYLES = {"openai-chat": openai_chat, "openai-responses": openai_responses, "anthropic-messages": anthropic_messages}

if __name__ == "__main__":
    style, base_url, key, *questions = sys.argv[1:]
    sys.stdout.write(STYLES[style](base_url, key, questions) + "\n")
