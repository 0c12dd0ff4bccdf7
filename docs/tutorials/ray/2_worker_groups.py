# %% [markdown] tags=["slow"]
# # 2. Resource pools and worker groups
#
# verl puts a row of processes on a row of GPUs and speaks to them as one object:
#
# | class | what it is |
# |---|---|
# | `RayResourcePool` | places for processes: how many on which node, with a GPU each or without |
# | `RayClassWithInitArgs` | an actor class with the arguments of its constructor, kept until there is a place |
# | `RayWorkerGroup` | one actor for each place; knows its ranks, calls all of them |
# | `Worker` | the base class of such actors; finds `RANK`, `WORLD_SIZE` and `MASTER_ADDR` in its environment |
#
# Without an argument everything is on CPUs. `python docs/tutorials/ray/2_worker_groups.py --gpu` takes eight GPUs of
# one machine, one for each place; where there are fewer, the places are on CPUs and their workers share the GPUs. In
# the notebook write `USE_GPU = True`.

# %%
import os
import sys

os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")  # verl warns of each process that sees no GPU

import ray
import torch
from verl.single_controller.base import Worker
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.single_controller.ray.base import merge_resource_pool

USE_GPU = "--gpu" in sys.argv
if USE_GPU and not torch.cuda.is_available():
    sys.exit("--gpu: PyTorch finds no GPU here")
OWN_GPUS = USE_GPU and torch.cuda.device_count() >= 8  # with fewer, the workers share what there is


def device_of(rank: int) -> torch.device:
    return torch.device("cuda", rank % torch.cuda.device_count()) if USE_GPU else torch.device("cpu")


ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

# %% [markdown]
# `RayResourcePool([4])` is one node with four places; `[4, 4]` would be two nodes. Ray keeps the places free for this
# pool by a *placement group*. `max_colocate_count` says how many worker groups may share it: a worker then takes
# `1 / max_colocate_count` of its GPU, by Ray's count, and the place has that many logical CPUs. A worker that has a GPU
# of Ray sees that one alone, as number 0; one that has none sees them all.

# %%
resource_pool = RayResourcePool([4], use_gpu=OWN_GPUS, max_colocate_count=2)


@ray.remote
class GPUAccumulator(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.value = torch.zeros(1, device=device_of(self.rank)) + self.rank

    def add(self, x: int) -> int:
        self.value += x
        return int(self.value.item())


class_with_args = RayClassWithInitArgs(cls=GPUAccumulator)
worker_group = RayWorkerGroup(resource_pool, class_with_args)

# %% [markdown]
# `execute_all_sync` calls a method of every worker and waits. When every argument is a list as long as the group, each
# worker gets its own entry, here a 1. In all other cases each worker gets the arguments as they are, lists included: a
# list of another length raises nothing. Each value began at its worker's rank, so 1 is added to 0, 1, 2, 3.

# %%
output = worker_group.execute_all_sync("add", x=[1, 1, 1, 1])
print(output)
assert output == [1, 2, 3, 4]

# %% [markdown]
# A worker group has no end of its own, and processes without work still hold their memory. `ray.kill` ends an actor.


# %%
def end(group: RayWorkerGroup) -> None:
    for worker in group.workers:
        ray.kill(worker)


end(worker_group)

# %% [markdown]
# ## Pools put together
#
# A trainer and its rollouts may have four GPUs each in one phase and all eight in another. `merge_resource_pool` makes
# one pool of the *places* of two; nothing is moved, and groups on the two parts may go on. Ranks are counted anew.

# %%
resource_pool_1 = RayResourcePool([4], use_gpu=OWN_GPUS, max_colocate_count=2)
worker_group_1 = RayWorkerGroup(resource_pool_1, class_with_args)
output_1 = worker_group_1.execute_all_sync("add", x=[2, 2, 2, 2])
print(output_1)
assert output_1 == [2, 3, 4, 5]
end(worker_group_1)

# %%
resource_pool_merge = merge_resource_pool(resource_pool, resource_pool_1)
worker_group_merge = RayWorkerGroup(resource_pool_merge, class_with_args)
output_merge = worker_group_merge.execute_all_sync("add", x=[3, 3, 3, 3, 3, 3, 3, 3])
print(output_merge)
assert output_merge == [3, 4, 5, 6, 7, 8, 9, 10]

# %%
world_sizes = worker_group.world_size, worker_group_1.world_size, worker_group_merge.world_size
print(*world_sizes)
assert world_sizes == (4, 4, 8)

# %% [markdown]
# `execute_all_sync` takes the name of a method and lists by hand. [Chapter 3](3_dispatch.ipynb) has the way that verl's
# own workers are called: as methods of the group.

# %%
ray.shutdown()
