"""The lesson with a code tool: the same ids from the demonstrations, the chat template, and the proxy's renderer."""

import json
import random
from typing import Any

import pytest

from agentic.models.tiny import arithmetic
from agentic.models.tiny.tokenizer import ChatEncoder, Message, train_tokenizer
from agentic.proxy import conversation, make_renderer
from agentic.proxy.renderers.base import HeldTurn
from agentic.rollout.agents.code_text import CODE_TOOL
from agentic.tasks.problems.generator import WordProblem, generate, value_of
from agentic.tasks.problems.plain import boxed

# The first test pays for the imports, which take long on a machine that is busy otherwise.
pytestmark = pytest.mark.timeout(240)

PROBLEMS = generate(60, "tests")
PROMPT_TOKENS, RESPONSE_TOKENS, TURN_TOKENS = 96, 160, 48
"""Of the profile math."""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    chats = [arithmetic.demonstrate(one, random.Random(0), careful=True) for one in PROBLEMS]
    corpus = [message.content for chat in chats for message in chat] + ["user", "assistant", "tool"] * 60
    return train_tokenizer(corpus, 340, arithmetic.PIECES, arithmetic.TEMPLATE)


@pytest.fixture(scope="module")
def encoder(tokenizer: Any) -> ChatEncoder:
    return ChatEncoder(tokenizer, arithmetic.GAP)


def careful(problem: WordProblem) -> list[Message]:
    return arithmetic.demonstrate(problem, random.Random(0), careful=True)


def as_api(chat: list[Message]) -> list[dict[str, Any]]:
    """The chat as an OpenAI client would send it: calls as calls."""
    asked, acted, printed, answered = chat
    written = json.loads(acted.content.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
    call = {"id": "c", "type": "function", "function": {"name": written["name"], "arguments": written["arguments"]}}
    return [
        asked._asdict(),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        printed._asdict(),
        answered._asdict(),
    ]


def test_a_call_renders_as_it_was_demonstrated(tokenizer: Any, encoder: ChatEncoder) -> None:
    for problem in PROBLEMS:
        chat = careful(problem)
        ids, mask = encoder.demonstration(chat)
        assert list(tokenizer.apply_chat_template(as_api(chat), return_dict=False)) == ids
        spoken = tokenizer.decode([token for token, one in zip(ids, mask, strict=True) if one])
        assert spoken == f"{chat[1].content}<|im_end|>{chat[3].content}<|im_end|>"


def test_the_proxy_appends_what_the_policy_was_taught(tokenizer: Any, encoder: ChatEncoder) -> None:
    renderer = make_renderer(tokenizer)
    asked, acted, printed, _ = careful(PROBLEMS[0])
    user = conversation.Message("user", asked.content)
    prompt = renderer.render([user], [CODE_TOOL])
    assert prompt == encoder.first_prompt(asked.content)
    sampled = [*encoder.encode(acted.content), encoder.end]
    reply = renderer.parse(sampled, [CODE_TOOL])
    assert [call.name for call in reply.tool_calls] == ["code_interpreter"]
    assert json.loads(reply.tool_calls[0].arguments) == {"code": PROBLEMS[0].code}
    tool = conversation.Message("tool", printed.content, tool_call_id=reply.tool_calls[0].id)
    held = HeldTurn(prompt, sampled, messages=2)
    assert renderer.bridge(held, [user, reply, tool], [CODE_TOOL]) == encoder.observation(printed)


def test_demonstrations_fit_the_profile(encoder: ChatEncoder) -> None:
    for problem in PROBLEMS:
        chat = careful(problem)
        ids, mask = encoder.demonstration(chat)
        prompt = mask.index(1)
        assert prompt <= PROMPT_TOKENS
        assert len(ids) - prompt <= RESPONSE_TOKENS
        assert len(encoder.encode(chat[1].content)) < TURN_TOKENS


def test_the_careful_demonstrator_is_right_and_the_hasty_ones_are_not() -> None:
    rng = random.Random(1)
    for problem in PROBLEMS:
        assert boxed(careful(problem)[-1].content) == problem.problem.answer
        chats = [arithmetic.demonstrate(problem, rng, careful=False) for _ in range(8)]
        assert {len(chat) for chat in chats} <= {2, 4}
        for chat in chats:
            assert boxed(chat[-1].content) != problem.problem.answer
            if len(chat) == 4:
                code = json.loads(chat[1].content[len("<tool_call>\n") : -len("\n</tool_call>")])["arguments"]["code"]
                assert chat[2].content == str(value_of(code)) == str(eval(code))
