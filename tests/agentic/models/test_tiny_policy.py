"""The tiny policy: its tokens, its demonstrations, and the folder that comes out, from a start of a few steps."""

import random
import re
import subprocess
from pathlib import Path

import pytest

from agentic.models.prepare import prepare
from agentic.models.settings import TinyModel
from agentic.models.tiny.demonstrations import demonstrate
from agentic.models.tiny.tokenizer import ChatEncoder, Message
from agentic.tasks.mutation.forms import PHRASES, Kind
from agentic.tasks.mutation.generator import Mutant, Recipe, generate
from agentic.tasks.mutation.splits import make_mutants
from agentic.tasks.settings import MutationData

# The first test pays for the imports, which take long on a machine that is busy otherwise.
pytestmark = pytest.mark.timeout(240)

SMALL = TinyModel(demonstrations=600, steps=4, batch=4)
MUTANTS = generate(48, "tests", Recipe(two_places=0.3, made_up=0.3))
PROMPT_TOKENS, RESPONSE_TOKENS, TURN_TOKENS = 128, 224, 48


class Progress:
    def __init__(self) -> None:
        self.seen: list[tuple[int, int, str]] = []

    def __call__(self, done: int, total: int, message: str) -> None:
        self.seen.append((done, total, message))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / "tiny"
    progress = Progress()
    summary = prepare(SMALL, None, out, progress)
    assert not summary.reused
    assert 500_000 < summary.parameters < 650_000
    assert [done for done, _, _ in progress.seen[:-1]] == sorted(done for done, _, _ in progress.seen[:-1])
    assert any("loss" in message for _, _, message in progress.seen)
    return out


@pytest.fixture(scope="module")
def encoder(policy: Path) -> ChatEncoder:
    from transformers import AutoTokenizer

    return ChatEncoder(AutoTokenizer.from_pretrained(policy))


def text_of(chat: list[Message]) -> str:
    return "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in chat)


def test_the_model_and_its_tokenizer_agree(policy: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

    model, tokenizer = AutoModelForCausalLM.from_pretrained(policy), AutoTokenizer.from_pretrained(policy)
    assert model.config.model_type == "llama"
    assert model.config.vocab_size == len(tokenizer) == SMALL.vocabulary
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.eos_token == "<|im_end|>"
    own = PreTrainedTokenizerFast(tokenizer_file=str(policy / "tokenizer.json"))
    for mutant in MUTANTS:
        for text in (mutant.source, mutant.instruction, text_of(demonstrate(mutant, random.Random(0), careful=True))):
            assert tokenizer.encode(text, add_special_tokens=False) == own.encode(text, add_special_tokens=False)
            assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_chats_encoded_piece_by_piece_equal_the_rendered_chat(policy: Path, encoder: ChatEncoder) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy)
    for mutant in MUTANTS:
        chat = demonstrate(mutant, random.Random(1), careful=True)
        messages = [message._asdict() for message in chat]
        assert tokenizer.apply_chat_template(messages, tokenize=False) == text_of(chat)
        whole = list(tokenizer.apply_chat_template(messages, return_dict=False))
        assert encoder.demonstration(chat)[0] + encoder.gap == whole
        for length in range(1, len(messages)):
            part = list(tokenizer.apply_chat_template(messages[:length], return_dict=False))
            assert whole[: len(part)] == part, "the template must only append"


def test_the_mask_marks_what_the_assistant_says_with_its_end_of_turn(encoder: ChatEncoder) -> None:
    chat = demonstrate(MUTANTS[0], random.Random(0), careful=True)
    ids, mask = encoder.demonstration(chat)
    spoken = [token for token, mine in zip(ids, mask, strict=True) if mine]
    expected = [[*encoder.encode(message.content), encoder.end] for message in chat if message.role == "assistant"]
    assert spoken == [token for turn in expected for token in turn]


def test_each_bracketed_form_is_one_token(encoder: ChatEncoder) -> None:
    for kind in ("index", "slice", "swap", "fold", "guard"):
        for form in PHRASES[Kind(kind)]:
            assert len(encoder.encode(form)) == 1, form
            if form.startswith("["):
                assert len(encoder.encode(f"\\{form[:-1]}\\]")) == 1, form


def test_generated_tasks_fit_the_demos_token_budgets(encoder: ChatEncoder) -> None:
    mutants = [mutant for members in make_mutants(MutationData()).values() for mutant in members]
    for mutant in mutants:
        chat = demonstrate(mutant, random.Random(0), careful=True)
        ids, mask = encoder.demonstration(chat)
        first = len(encoder.first_prompt(mutant.instruction))
        turns = [len(encoder.encode(message.content)) + 1 for message in chat if message.role == "assistant"]
        assert first <= PROMPT_TOKENS
        assert len(ids) - first <= RESPONSE_TOKENS
        assert max(turns) <= TURN_TOKENS
        assert sum(turns) == sum(mask)


def repaired(mutant: Mutant, folder: Path, chat: list[Message]) -> str:
    """The file after the demonstrated commands ran in a real shell."""
    (folder / "mod.py").write_text(mutant.source)
    for message in chat:
        command = re.search(r"```bash\n(.*?)\n```", message.content, re.DOTALL) if message.role == "assistant" else None
        if command is not None and command[1] != "submit":
            subprocess.run(["sh", "-c", command[1]], cwd=folder, check=True, capture_output=True)
    return (folder / "mod.py").read_text()


def test_the_careful_demonstrator_repairs_every_task(tmp_path: Path) -> None:
    for mutant in MUTANTS[:24]:
        chat = demonstrate(mutant, random.Random(0), careful=True)
        assert repaired(mutant, tmp_path, chat) == mutant.fixed
        assert f"{mutant.wrong.line}: {mutant.wrong.phrase}, {mutant.wrong.form.strip()}\n```" in chat[3].content


def test_the_hasty_demonstrator_edits_and_mostly_fails(tmp_path: Path) -> None:
    rng = random.Random(0)
    results = [repaired(mutant, tmp_path, demonstrate(mutant, rng, careful=False)) for mutant in MUTANTS]
    solved = sum(result == mutant.fixed for result, mutant in zip(results, MUTANTS, strict=True))
    assert 0 < solved < 0.35 * len(MUTANTS)
    assert all(result != mutant.source for result, mutant in zip(results, MUTANTS, strict=True))


def test_a_second_run_is_free_and_other_settings_make_another_policy(policy: Path) -> None:
    before = {path.name: path.read_bytes() for path in policy.iterdir()}
    again = prepare(SMALL, None, policy, Progress())
    assert again.reused
    assert again.seconds < 1
    assert {path.name: path.read_bytes() for path in policy.iterdir()} == before
    assert sorted(path.name for path in policy.parent.iterdir()) == [".tiny.lock", "tiny"], "nothing half-done is left"


def test_the_same_settings_make_the_same_policy(policy: Path, tmp_path: Path) -> None:
    prepare(SMALL, None, tmp_path / "tiny", Progress())
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "tiny" / name).read_bytes() == (policy / name).read_bytes(), name
    prepare(SMALL.model_copy(update={"seed": 1}), None, tmp_path / "tiny", Progress())
    assert (tmp_path / "tiny/model.safetensors").read_bytes() != (policy / "model.safetensors").read_bytes()


def test_a_torn_folder_is_made_again(policy: Path, tmp_path: Path) -> None:
    (tmp_path / ".tiny.partial").mkdir()
    (tmp_path / ".tiny.partial/config.json").write_text("{")
    prepare(SMALL, None, tmp_path / "tiny", Progress())
    weights = tmp_path / "tiny/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert not prepare(SMALL, None, tmp_path / "tiny", Progress()).reused
    assert weights.read_bytes() == (policy / "model.safetensors").read_bytes()


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    losses = []
    for steps in (2, 30):
        progress = Progress()
        prepare(SMALL.model_copy(update={"steps": steps, "careful_first": 1.0}), None, tmp_path / str(steps), progress)
        found = [re.search(r"loss ([\d.]+)", message) for _, _, message in progress.seen]
        losses.append(float([match for match in found if match][-1][1]))
    assert losses[1] < 0.7 * losses[0]
