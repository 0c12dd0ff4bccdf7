"""The three splits of a mutation data set, as task folders."""

from agentic.tasks import splits
from agentic.tasks.harbor_format import TaskFolder
from agentic.tasks.mutation.folders import make_folder
from agentic.tasks.mutation.generator import NEW_TEMPLATE, Mutant, Recipe, generate
from agentic.tasks.mutation.templates import HELD_OUT_NOUNS
from agentic.tasks.settings import MutationData


def make_mutants(settings: MutationData) -> dict[str, list[Mutant]]:
    """Split → mutants. Held-out functions use nouns that no training function has; new-template ones new shapes too."""
    held_out = f"held-out-{settings.held_out_seed}"
    same_template = Recipe(nouns=HELD_OUT_NOUNS, two_places=settings.two_places)
    return {
        splits.TRAIN: generate(settings.train, f"train-{settings.seed}", Recipe(two_places=settings.two_places)),
        splits.SAME_TEMPLATE: generate(settings.same_template, f"same-{held_out}", same_template),
        splits.NEW_TEMPLATE: generate(settings.new_template, f"new-{held_out}", NEW_TEMPLATE),
    }


def make_splits(settings: MutationData) -> dict[str, list[TaskFolder]]:
    """Split → task folders, with ids that name split, number and kind."""
    return {
        split: [
            make_folder(mutant, f"{split}-{index:04}-{mutant.kind}", separate_grading=settings.separate_grading)
            for index, mutant in enumerate(mutants)
        ]
        for split, mutants in make_mutants(settings).items()
    }
