# %% [markdown] tags=["slow"]
# # 3. Dispatch and collect
#
# `@register` turns a worker's method into a method of its worker group. It answers three questions:
#
# - What does each worker get? `dispatch_mode`: `ONE_TO_ALL` gives all the same, `ALL_TO_ALL` passes the arguments on as
#   they are, and functions of your own do what you want.
# - Which workers work? `execute_mode`: `Execute.ALL` (the default) or `Execute.RANK_ZERO`.
# - Does the call wait? `blocking`: `True` (the default), or `False`, which returns references.
#
# Without an argument everything is on CPUs; `--gpu` takes four GPUs of one machine, or shares those that there are (in
# the notebook: `USE_GPU = True`).

# %%
import os
import sys
from typing import Any

os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")  # verl warns of each process that sees no GPU

import ray
import torch
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, Execute, collect_all_to_all, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

USE_GPU = "--gpu" in sys.argv
if USE_GPU and not torch.cuda.is_available():
    sys.exit("--gpu: PyTorch finds no GPU here")
OWN_GPUS = USE_GPU and torch.cuda.device_count() >= 4  # with fewer, the workers share what there is


def device_of(rank: int) -> torch.device:
    return torch.device("cuda", rank % torch.cuda.device_count()) if USE_GPU else torch.device("cpu")


ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
resource_pool = RayResourcePool([4], use_gpu=OWN_GPUS, max_colocate_count=2)

# %% [markdown]
# ## One to all
#
# The caller writes `add(x=10)`, as if there were one object. Each of the four workers adds 10 to a value that began at
# its rank.


# %%
@ray.remote
class GPUAccumulatorDecorator(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.value = torch.zeros(1, device=device_of(self.rank)) + self.rank

    @register(Dispatch.ONE_TO_ALL)
    def add(self, x: int) -> int:
        self.value += x
        return int(self.value.item())


accumulators = RayWorkerGroup(resource_pool, RayClassWithInitArgs(cls=GPUAccumulatorDecorator))
output = accumulators.add(x=10)
print(output)
assert output == [10, 11, 12, 13]
for worker in accumulators.workers:
    ray.kill(worker)

# %% [markdown]
# ## A dispatch of your own
#
# A dispatch function gets the group and the caller's arguments and returns, for each argument, a list with one entry
# for each worker. A collect function gets the results in the order of ranks; `collect_all_to_all` passes them on. This
# one takes pairs: workers 0 and 2 get the first value, workers 1 and 3 the second.


# %%
def two_to_all_dispatch_fn(worker_group: RayWorkerGroup, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    def spread(pair: list[Any]) -> list[Any]:
        first, second = pair
        return [second if rank % 2 else first for rank in range(worker_group.world_size)]

    return tuple(spread(pair) for pair in args), {name: spread(pair) for name, pair in kwargs.items()}


@ray.remote
class TestActor(Worker):
    def __init__(self, x: int) -> None:
        super().__init__()
        self._x = x

    @register(dispatch_mode={"dispatch_fn": two_to_all_dispatch_fn, "collect_fn": collect_all_to_all})
    def foo_custom(self, x: int, y: int) -> int:
        return self._x + y + x

    @register(dispatch_mode=Dispatch.ALL_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def foo_rank_zero(self, x: int, y: int) -> int:
        return self._x + y + x


worker_group = RayWorkerGroup(resource_pool, RayClassWithInitArgs(cls=TestActor, x=2))
output = worker_group.foo_custom(x=[1, 2], y=[5, 6])
print(output)
assert output == [8, 10, 8, 10]

# %% [markdown]
# ## One worker alone
#
# `Execute.RANK_ZERO` calls the first worker only, with the arguments as they are, and the result is one value, not a
# list. It suits what only one rank may do, such as writing a file.

# %%
output = worker_group.foo_rank_zero(x=1, y=2)
print(output)
assert output == 5

# %% [markdown]
# verl's workers seldom name `ONE_TO_ALL` for data: a batch is split over the data-parallel ranks of a *mesh*, and ranks
# that share a part of the batch get the same part. [Chapter 4](4_megatron.ipynb) does that with Megatron.

# %%
ray.shutdown()
