"""One training step of verl's V1 trainer on a batch of agent loop outputs, without Ray, TransferQueue and FSDP.

Real are verl's forms (`AgentLoopOutput.as_dict`, nested and padded tensors), its synthetic padding rows, its estimators
over several trajectories, its losses and their normalisation by the mini batch. Faked are the two networks, small
functions of a token and all those before it (so that how a conversation is cut into rows cannot change what the policy
says of a token), and the engine around them, which here is a loop over micro batches.
"""

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import torch
from tensordict.tensorclass import NonTensorData
from verl.protocol import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils import tensordict_utils as tu
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.config import FSDPActorConfig, FSDPCriticConfig
from verl.workers.utils.losses import ppo_loss, value_loss
from verl.workers.utils.padding import response_from_nested, response_to_nested

VOCABULARY = 24
END = 0


class Causal(torch.nn.Module):
    """A score of each token's successors (or a value) from the token and the mean of all up to it."""

    def __init__(self, outputs, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embedding = torch.nn.Parameter(torch.randn(VOCABULARY, 6, generator=generator, dtype=torch.float64))
        self.head = torch.nn.Parameter(torch.randn(6, outputs, generator=generator, dtype=torch.float64))

    def forward(self, ids):
        seen = self.embedding[ids]
        mean = seen.cumsum(0) / torch.arange(1, len(ids) + 1, dtype=torch.float64).unsqueeze(1)
        return torch.tanh(seen + mean) @ self.head


def log_probs(policy, ids):
    """Of each token given those before it, at the place before it, as verl's engines have it."""
    scores = policy(ids).log_softmax(-1)
    return torch.cat([scores[:-1].gather(1, ids[1:].unsqueeze(1)).squeeze(1), scores.new_zeros(1)])


def as_rows(outputs_by_session):
    """Keys and fields as verl's agent loop worker writes them; a session without outputs writes nothing."""
    keys, rows = [], []
    for (group, session), outputs in outputs_by_session.items():
        for number, output in enumerate(outputs):
            fields = output.as_dict()
            ids = torch.cat([fields["prompts"], fields["responses"]])
            fields = {name: fields[name] for name in ("prompts", "responses", "response_mask", "rm_scores")}
            keys.append(f"{group}_{session}_{number}")
            rows.append({**fields, "uid": group, "input_ids": ids, "loss_mask": fields["response_mask"]})
    return keys, rows


def padded(keys, rows, multiple):
    """With verl's synthetic rows up to a multiple of the mini batch."""
    missing = -len(rows) % multiple
    if not missing:
        return keys, rows
    template, _ = construct_minimal_padding_template(rows[0], {}, END)
    template = {name: template[name] for name in rows[0]} | {"uid": "pad"}
    return [*keys, *(f"pad_{n}_0" for n in range(missing))], [*rows, *(dict(template) for _ in range(missing))]


def nested(rows):
    """As TransferQueue gives them: jagged, also where all rows happen to be equally long."""
    data = list_of_dict_to_tensordict(rows)
    for name, value in rows[0].items():
        if isinstance(value, torch.Tensor):
            data[name] = torch.nested.as_nested_tensor([row[name] for row in rows], layout=torch.jagged)
    return data


class Step:
    """A step's advantages, loss and gradient."""

    def __init__(self, outputs_by_session, *, estimator="grpo", mini_batch=16, micro_batch=4, old_policy=1, policy=2):
        self.keys, rows = padded(*as_rows(outputs_by_session), mini_batch)
        self.mini_batch, self.micro_batch = mini_batch, micro_batch
        self.policy, self.old_policy = Causal(VOCABULARY, policy), Causal(VOCABULARY, old_policy)
        self.critic, self.old_critic = Causal(1, policy + 10), Causal(1, old_policy + 10)
        self.data = nested(rows)
        with torch.no_grad():
            self._put("old_log_probs", lambda ids: log_probs(self.old_policy, ids))
            self._put("values", lambda ids: self.old_critic(ids).squeeze(1))
        self._estimate(estimator)

    def _nested(self, compute):
        return torch.nested.as_nested_tensor([compute(ids) for ids in self.data["input_ids"]], layout=torch.jagged)

    def _put(self, name, compute):
        self.data[name] = response_from_nested(self._nested(compute), self.data["response_mask"])

    def _estimate(self, estimator):
        mask = self.data["response_mask"]
        fields = self.data.select("response_mask", "rm_scores", "values").to_padded_tensor()
        batch = DataProto(batch=fields)
        batch.batch["token_level_rewards"] = batch.batch["rm_scores"].double()
        uids = [key.rsplit("_", 2)[0] for key in self.keys]
        batch.non_tensor_batch["uid"] = np.array(uids, dtype=object)
        batch = compute_advantage_for_multi_trajectories(
            batch, batch_keys=self.keys, adv_estimator=estimator, gamma=1.0, lam=1.0, config=AlgoConfig()
        )
        for name in ("advantages", "returns"):
            self.data[name] = response_to_nested(batch.batch[name], mask)

    def advantages(self):
        """Of each trained token, by group and session, in the order of the conversation."""
        found = defaultdict(list)
        for key, values, mask in zip(self.keys, self.data["advantages"], self.data["response_mask"], strict=True):
            group, session, _ = key.rsplit("_", 2)
            if group != "pad":
                found[group, session] += values[mask.bool()].tolist()
        return dict(found)

    def actor(self):
        """(loss, gradient) of the first mini batch."""
        config = FSDPActorConfig(
            strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=self.micro_batch, use_torch_compile=False
        )

        def loss(micro_batch):
            rows = [log_probs(self.policy, ids) for ids in micro_batch["input_ids"]]
            output = {"log_probs": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}
            return ppo_loss(config, output, micro_batch)[0]

        return self._update(self.policy, loss)

    def value(self):
        """(loss, gradient) of the critic's first mini batch."""
        config = FSDPCriticConfig(strategy="fsdp2", ppo_micro_batch_size_per_gpu=self.micro_batch)

        def loss(micro_batch):
            rows = [self.critic(ids).squeeze(1) for ids in micro_batch["input_ids"]]
            output = {"values": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}
            return value_loss(config, output, micro_batch)[0]

        return self._update(self.critic, loss)

    def _update(self, network, loss_of):
        network.zero_grad()
        data = tu.index_select_tensor_dict(self.data, list(range(self.mini_batch)))
        counts = {
            "dp_size": 1,
            "global_batch_size": self.mini_batch,
            "batch_num_tokens": data["loss_mask"].sum().item(),
        }
        total = 0.0
        for micro_batch in tu.chunk_tensordict(data, self.mini_batch // self.micro_batch):
            tu.assign_non_tensor(micro_batch, **{name: NonTensorData(value) for name, value in counts.items()})
            loss = loss_of(micro_batch)
            loss.backward()
            total += loss.item()
        gradient = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
        return SimpleNamespace(loss=total, gradient=gradient)
