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
            chunks = client.chat.completions.create(model="policy", messages=messages, stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            messages.append({"role": "assistant", "content": text})
    return text


def openai_responses(base_url: str, key: str, questions: list[str]) -> str:
    """Responses, each continuing the one before by its id."""
    from openai import OpenAI

    previous: str | None = None
    with OpenAI(base_url=base_url, api_key=key) as client:
        for question in questions:
            events = client.responses.create(model="policy", input=question, previous_response_id=previous, stream=True)
            (answer,) = (e.response for e in events if e.type in ("response.completed", "response.incomplete"))
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
