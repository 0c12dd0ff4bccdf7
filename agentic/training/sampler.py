"""verl's replay buffer, asked more often, and a witness of what is trained.

Loaded by name (`trainer.v1.sampler.custom_sampler`); verl's own sampling decides everything. On top:

- batches are asked for every `poll_seconds` instead of every 2 s;
- a group with too few rollouts to compare (see `groups.py`) is taken out, and counted in verl's metrics as
  `training/rollout_groups/masked`. Taken out, and not given a mask of zeros: the mean over tokens of a mini batch that
  holds nothing else would be 0/0;
- what the run's records say of the step's rollouts (see `rollout_metrics.py`) is added to verl's metrics;
- each row that goes to training is written to the run's audit file with the digest of its token ids and loss mask. The
  rollout records hold the same digests, taken from the proxy's sealed sessions, so that anybody can check that the
  tokens trained are the tokens sampled (`agentic.training.audit`);
- for the control experiment, rewards are permuted within each group: every statistic of the group stays as it was, and
  nothing about the policy can be learned from them.
"""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transfer_queue
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from agentic import json_lines
from agentic.errors import TransientError
from agentic.rollout.records import Phase, token_digest
from agentic.training.control import permute_within_groups
from agentic.training.groups import group_of, lone_rows
from agentic.training.rollout_metrics import RecordReader, rollout_metrics

MASKED_GROUPS = "training/rollout_groups/masked"
"""Groups of a step that had too few rollouts to compare, in verl's metrics."""


class AuditedReplayBuffer(ReplayBuffer):  # type: ignore[misc]
    """Sampling as verl has it; training batches leave a trace."""

    def __init__(self, **kwargs: Any) -> None:
        options = kwargs["sampler_kwargs"]
        super().__init__(**{**kwargs, "poll_interval": float(options.poll_seconds)})
        self._audit_file = Path(options.audit_file)
        self._records = RecordReader(self._audit_file.parent)
        self._min_group_rollouts = int(options.min_group_rollouts)
        self._shuffle = random.Random(int(options.seed)) if options.shuffle_rewards else None

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """verl's sample; see the module's docstring for what is added to training batches."""
        batch, metrics = super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
        if partition_id == "train":
            batch, metrics[MASKED_GROUPS] = self._without_lone_groups(batch)
            records = self._records.take(Phase.TRAIN)
            metrics |= rollout_metrics(records, groups=self._records.end_groups(global_steps))
            metrics |= rollout_metrics(self._records.take(Phase.VALIDATION), "rollouts/validation")
            if self._shuffle is not None:
                self._permute_rewards(batch.keys, self._shuffle)
            self._write_audit(global_steps, batch.keys)
        return batch, metrics

    def _without_lone_groups(self, batch: KVBatchMeta) -> tuple[KVBatchMeta, int]:
        """The batch that can be compared, and how many groups were left out. Their rows are forgotten.

        Raises TransientError when nothing is left: so many rollouts were lost that a step would train on none.
        """
        lone = set(lone_rows(batch.keys, self._min_group_rollouts))
        if not lone:
            return batch, 0
        dropped = [batch.keys[row] for row in sorted(lone)]
        kept = [row for row in range(len(batch.keys)) if row not in lone]
        if not kept:
            raise TransientError(
                f"infrastructure left none of {len(dropped)} rollouts another of its group to compare with: see "
                "infra_reason in rollouts/train.jsonl"
            )
        transfer_queue.kv_clear(partition_id=batch.partition_id, keys=dropped)
        rest = replace(batch, keys=[batch.keys[row] for row in kept], tags=[batch.tags[row] for row in kept])
        return rest, len({group_of(key) for key in dropped})

    def _write_audit(self, step: int, keys: list[str]) -> None:
        rows = transfer_queue.kv_batch_get(
            keys=keys, partition_id="train", select_fields=["responses", "response_mask"]
        )
        ids, masks = rows["responses"].unbind(), rows["response_mask"].unbind()
        lines = [
            json.dumps({"step": step, "row": key, "digest": token_digest(response.tolist(), mask.tolist())})
            for key, response, mask in zip(keys, ids, masks, strict=True)
        ]
        json_lines.append(self._audit_file, lines)

    def _permute_rewards(self, keys: list[str], shuffle: random.Random) -> None:
        """Give each session of a group the reward of a random session of it."""
        scores = transfer_queue.kv_batch_get(keys=keys, partition_id="train", select_fields=["rm_scores"])["rm_scores"]
        rewards = {key.rpartition("_")[0]: float(row[-1]) for key, row in zip(keys, scores.unbind(), strict=True)}
        permuted = permute_within_groups(rewards, shuffle)
        rows = []
        for key, row in zip(keys, scores.unbind(), strict=True):
            changed = torch.zeros_like(row)
            changed[-1] = permuted[key.rpartition("_")[0]]
            rows.append(changed)
        fields = list_of_dict_to_tensordict([{"rm_scores": row} for row in rows])
        transfer_queue.kv_batch_put(keys=keys, partition_id="train", fields=fields)
