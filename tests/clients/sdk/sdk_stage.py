"""A proxy on loopback for SDK clients, on a scripted model that thinks and calls tools as Qwen3 does.

Only what is sampled is scripted; sockets, SDKs, dialects, rendering by the library `renderers` and capture are real.
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy_tokens import TINY_TEMPLATE, make_tokenizer
from tokenizers import Tokenizer

from agentic.proxy import (
    ProxyServer,
    ProxySettings,
    Sampling,
    ScriptedEngine,
    ScriptedReply,
    SealedSession,
    SessionHandle,
    SessionSpec,
    make_renderer,
)

THINKING = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
SESSION = "rollout-1"
PARAMETERS = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}


def says(text: str, thought: str = "") -> str:
    """A reply in the model's own form."""
    return f"<think>\n{thought}\n</think>\n\n{text}"


def calls(*commands: str, text: str = "", thought: str = "") -> str:
    """A reply that runs commands."""
    blocks = [{"name": "run", "arguments": {"cmd": command}} for command in commands]
    written = "\n".join(f"<tool_call>\n{json.dumps(block)}\n</tool_call>" for block in blocks)
    return says(f"{text}\n{written}" if text else written, thought)


@dataclass
class SdkStage:
    """A running proxy and one open session."""

    server: ProxyServer
    engine: ScriptedEngine
    handle: SessionHandle
    tokenizer: Tokenizer

    @property
    def root_url(self) -> str:
        """The session's base URL without /v1, as Anthropic's clients take it."""
        return self.handle.base_url.removesuffix("/v1")

    @property
    def prompts(self) -> list[str]:
        """What the engine was asked, as text."""
        return [self.tokenizer.decode(list(r.prompt_ids), skip_special_tokens=False) for r in self.engine.received]

    async def seal(self) -> SealedSession:
        """What was captured."""
        return await self.server.seal(SESSION)

    async def sampled_in_one_path(self) -> list[str]:
        """The trained stretches of the only trajectory: there is one, so nothing forked."""
        sealed = await self.seal()
        assert sealed.complete, sealed.incomplete_reason
        (path,) = sealed.trajectories
        stretches: list[list[int]] = [[]]
        for token, mask in zip(path.response_ids, path.response_mask, strict=True):
            if mask:
                stretches[-1].append(token)
            elif stretches[-1]:
                stretches.append([])
        return [self.tokenizer.decode(part, skip_special_tokens=False) for part in stretches if part]


@asynccontextmanager
async def sdk_stage(folder: Path, replies: Sequence[str], **spec: Any) -> AsyncIterator[SdkStage]:
    """A stage whose model gives these replies in order."""
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(list(THINKING))
    model = _write_folder(folder / "Qwen3-4B", tokenizer)
    scripts = [
        ScriptedReply(tuple(tokenizer.encode(text + "<|im_end|>", add_special_tokens=False).ids), chunk_tokens=3)
        for text in replies
    ]
    engine = ScriptedEngine(scripts)
    server = ProxyServer(ProxySettings(), engine, make_renderer(model))
    await server.start()
    rooms = {"max_prompt_tokens": 6000, "max_response_tokens": 6000, "max_calls": 50} | spec
    sampling = Sampling(temperature=1.0, max_tokens=500)
    handle = await server.open(SessionSpec(session_id=SESSION, sampling=sampling, **rooms))
    try:
        yield SdkStage(server, engine, handle, tokenizer)
    finally:
        await server.stop()


def _write_folder(folder: Path, tokenizer: Tokenizer) -> Path:
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": TINY_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
