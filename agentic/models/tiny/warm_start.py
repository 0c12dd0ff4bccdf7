"""Makes the tiny policy: tokenizer, network, and supervised training on generated demonstrations.

Clean first, mixed last: for the first share of the steps all demonstrations are careful, so that forms are learned;
then the two habits are mixed, so that the policy begins with the one that pays less often than not. Everything follows
from the settings; the same settings give the same policy on the same machine.
"""

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from agentic.models.errors import ModelError
from agentic.models.settings import TinyModel
from agentic.models.tiny import arithmetic
from agentic.models.tiny.demonstrations import demonstrate
from agentic.models.tiny.network import check_same_as_hub_model, make_network, token_logprobs
from agentic.models.tiny.tokenizer import PIECES, TEMPLATE, ChatEncoder, Message, train_tokenizer
from agentic.tasks.mutation.forms import PHRASES, Kind
from agentic.tasks.mutation.generator import Recipe, generate
from agentic.tasks.problems.generator import HELD_OUT_NAMES, HELD_OUT_THINGS
from agentic.tasks.problems.generator import generate as generate_problems

type OnProgress = Callable[[int, int, str], None]
type Encoded = tuple[list[int], list[int]]

WARM_UP_STEPS = 30
COOL_DOWN_SHARE = 0.35
"""Share of the steps, at the end, in which the rates fall to nearly nothing."""
FLOOR = 0.02
REPORT_EVERY_STEPS = 20


class WarmStart(NamedTuple):
    """The policy and how it came about."""

    tokenizer: Any
    network: Any
    parameters: int
    loss: float
    data_seconds: float
    training_seconds: float


def make_policy(settings: TinyModel, on_progress: OnProgress) -> WarmStart:
    torch.set_num_threads(settings.threads)
    rng = random.Random(settings.seed)
    started = time.monotonic()
    on_progress(0, settings.steps, "making demonstrations")
    lesson = _repairs(settings, rng) if settings.lesson == "repair" else _arithmetic(settings, rng)
    tokenizer = train_tokenizer(lesson.corpus, settings.vocabulary, lesson.pieces, lesson.template)
    encoder = ChatEncoder(tokenizer, lesson.gap)
    _check_pieces(tokenizer, encoder, lesson.careful[:50])
    first, later = ([encoder.demonstration(chat) for chat in chats] for chats in (lesson.careful, lesson.mixed))
    data_seconds = time.monotonic() - started
    network = make_network(tokenizer, settings.hidden, settings.layers, settings.seed)
    check_same_as_hub_model(network, torch.tensor([first[0][0]]))
    loss = _train(network, first, later, settings, rng, on_progress)
    return WarmStart(
        tokenizer=tokenizer,
        network=network,
        parameters=sum(weight.numel() for weight in network.parameters()),
        loss=loss,
        data_seconds=data_seconds,
        training_seconds=time.monotonic() - started - data_seconds,
    )


def save_policy(policy: WarmStart, folder: Path) -> None:
    policy.tokenizer.save_pretrained(folder)
    policy.network.save_pretrained(folder)


class Lesson(NamedTuple):
    """What is demonstrated, and the form of its chats."""

    careful: list[list[Message]]
    mixed: list[list[Message]]
    corpus: list[str]
    pieces: Sequence[str]
    template: str
    gap: str


def _arithmetic(settings: TinyModel, rng: random.Random) -> Lesson:
    problems = generate_problems(settings.demonstrations, f"demonstrations-{settings.seed}")
    careful = [arithmetic.demonstrate(one, rng, careful=True) for one in problems]
    mixed = [arithmetic.demonstrate(one, rng, careful=rng.random() < settings.careful_share) for one in problems]
    words = [message.content for chat in careful for message in chat]
    names = [" " + word for word in (*HELD_OUT_NAMES, *HELD_OUT_THINGS)] + list(HELD_OUT_NAMES)
    corpus = [*words, *["user", "assistant", "tool", *names] * len(careful)]
    return Lesson(careful, mixed, corpus, arithmetic.PIECES, arithmetic.TEMPLATE, arithmetic.GAP)


def _repairs(settings: TinyModel, rng: random.Random) -> Lesson:
    recipe = Recipe(two_places=settings.two_places, made_up=settings.made_up)
    mutants = generate(settings.demonstrations, f"demonstrations-{settings.seed}", recipe)
    careful = [demonstrate(mutant, rng, careful=True) for mutant in mutants]
    mixed = [demonstrate(mutant, rng, careful=rng.random() < settings.careful_share) for mutant in mutants]
    return Lesson(careful, mixed, _corpus(careful), PIECES, TEMPLATE, "\n")


def _corpus(chats: Sequence[Sequence[Message]]) -> list[str]:
    """The demonstrations, and each form and phrase so often that it becomes one token."""
    texts = [message.content for chat in chats for message in chat]
    words = [word for forms in PHRASES.values() for form, phrase in forms.items() for word in (form, f" {phrase}")]
    escaped = [f"\\{form[:-1]}\\]" for kind in (Kind.INDEX, Kind.SLICE) for form in PHRASES[kind]]
    return [*texts, *["user", "assistant"] * 2 * len(chats), *[*words, *escaped] * (len(chats) // 4)]


def _check_pieces(tokenizer: Any, encoder: ChatEncoder, chats: Sequence[Sequence[Message]]) -> None:
    """Encoding by pieces equals encoding the rendered chat; else rollouts would see ids that were never trained."""
    for chat in chats:
        rendered = tokenizer.apply_chat_template([message._asdict() for message in chat], return_dict=False)
        if encoder.demonstration(chat)[0] + encoder.gap != list(rendered):
            raise ModelError(f"a chat encoded piece by piece differs from the rendered one: {chat[2].content!r}")


def _train(
    network: Any,
    first: Sequence[Encoded],
    later: Sequence[Encoded],
    settings: TinyModel,
    rng: random.Random,
    on_progress: OnProgress,
) -> float:
    optimizers = _make_optimizers(network, settings)
    rates = [(group, group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]
    loss = float("nan")
    for step in range(settings.steps):
        used = step / settings.steps
        for group, top in rates:
            group["lr"] = top * min(1.0, (step + 1) / WARM_UP_STEPS) * min(1.0, (1 - used) / COOL_DOWN_SHARE + FLOOR)
        rows = rng.sample(first if used < settings.careful_first else later, settings.batch)
        loss = _update(network, optimizers, rows, settings.context_weight)
        if (step + 1) % REPORT_EVERY_STEPS == 0 or step + 1 == settings.steps:
            on_progress(step + 1, settings.steps, f"warm start: loss {loss:.3f}")
    return loss


def _make_optimizers(network: Any, settings: TinyModel) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, AdamW for embeddings and norms: with AdamW alone the forms are not learned in time."""
    named = list(network.named_parameters())
    matrices = [weight for name, weight in named if weight.ndim == 2 and "embed" not in name]
    others = [weight for name, weight in named if weight.ndim != 2 or "embed" in name]
    return [
        torch.optim.AdamW(others, lr=settings.embedding_rate, weight_decay=0.0, betas=(0.9, 0.98)),
        torch.optim.Muon(matrices, lr=settings.matrix_rate, weight_decay=0.0),
    ]


def _update(
    network: Any, optimizers: Sequence[torch.optim.Optimizer], rows: Sequence[Encoded], context_weight: float
) -> float:
    ids, spoken = _pad([ids for ids, _ in rows]), _pad([mask for _, mask in rows])
    real = _pad([[1] * len(ids) for ids, _ in rows])
    logprobs = token_logprobs(network, ids, real)
    own = spoken[:, 1:][real[:, 1:].bool()].bool()
    loss = -logprobs[own].mean()
    network.zero_grad()
    (loss - context_weight * logprobs[~own].mean()).backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    return float(loss.detach())


def _pad(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Right-padded with 0, which is the padding entry of the vocabulary as well as an unset mask."""
    length = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (length - len(row))] for row in rows])
