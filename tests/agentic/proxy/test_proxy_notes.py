"""System texts among the messages, for models that take them at the start only."""

from pathlib import Path

import pytest
from proxy_rig import a_spec, running, says, text_of, user
from proxy_tokens import QWEN_LIKE_TEMPLATE, TINY_TEMPLATE, write_model_folder

from agentic.proxy.renderers import make_renderer
from agentic.proxy.renderers.notes import NotesAsUser

HEAD = "{% for m in messages %}{% if m['role'] == 'system' and not loop.first %}"
TAIL = "{% else %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
OPENING = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
REFUSES = HEAD + "{{ raise_exception('System message must be at the beginning.') }}" + TAIL + OPENING
LEAVES_OUT = HEAD + TAIL + OPENING


@pytest.mark.parametrize("template", [REFUSES, LEAVES_OUT], ids=["refuses", "leaves out"])
async def test_a_later_system_text_is_shown_as_the_user_s_where_the_template_has_no_place_for_it(
    tmp_path: Path, template: str
) -> None:
    async with running(write_model_folder(tmp_path / "model", template), [says("a"), says("b")]) as rig:
        handle = await rig.server.open(a_spec())
        messages = [
            {"role": "system", "content": "rules"},
            user("hi"),
            {"role": "system", "content": "calc.py changed"},
        ]
        answer = await rig.ask(handle, messages)
        assert answer.status == 200
        await rig.ask(handle, [*messages, answer.message, {"role": "system", "content": "again"}])
        sealed = await rig.server.seal("rollout-1")
    prompt = text_of(rig.engine.received[1].prompt_ids)
    assert "<|im_start|>user\ncalc.py changed<|im_end|>" in prompt
    assert "<|im_start|>system\nrules<|im_end|>" in prompt
    assert "<|im_start|>user\nagain<|im_end|>" in prompt
    assert len(sealed.trajectories) == 1


@pytest.mark.parametrize("template", [TINY_TEMPLATE, QWEN_LIKE_TEMPLATE])
def test_a_template_that_has_a_place_for_it_is_left_alone(tmp_path: Path, template: str) -> None:
    assert not isinstance(make_renderer(write_model_folder(tmp_path / "model", template)), NotesAsUser)
