# %% [markdown]
# # 1. Actors
#
# verl's trainer is one program that steers many processes. [Ray](https://docs.ray.io) starts these processes and
# carries the calls. This chapter has the three ideas of Ray that the others need:
#
# - an **actor** is an object that lives in a process of its own;
# - calling its method with `.remote(...)` returns at once, with a **reference** to a result that may not be there yet;
# - `ray.get(reference)` waits for the result and brings it here.
#
# Run it as a script (`python docs/tutorials/ray/1_actors.py`) or open the notebook of the same name.

# %%
import ray

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

# %% [markdown]
# `@ray.remote` makes an actor class of a class. `Accumulator.remote()` starts a process that holds one `Accumulator`.


# %%
@ray.remote
class Accumulator:
    def __init__(self) -> None:
        self.value = 0

    def add(self, x: int) -> None:
        self.value += x

    def get_value(self) -> int:
        return self.value


accumulator = Accumulator.remote()
value = ray.get(accumulator.get_value.remote())
print(value)
assert value == 0

# %% [markdown]
# An actor does one call after the other, in the order in which one caller made them. So `get_value` sees what `add`
# did, although nothing here waited for `add`.

# %%
accumulator.add.remote(10)
value = ray.get(accumulator.get_value.remote())
print(value)
assert value == 10

# %% [markdown]
# References are made to be collected: start all calls first, wait once. Four actors do their work side by side.

# %%
accumulators = [Accumulator.remote() for _ in range(4)]
ray.get([actor.add.remote(10 * rank) for rank, actor in enumerate(accumulators)])
values = ray.get([actor.get_value.remote() for actor in accumulators])
print(values)
assert values == [0, 10, 20, 30]

# %% [markdown]
# The last cell is what a *worker group* does for you: the same class in several processes, one call for all, results in
# the order of ranks. [Chapter 2](2_worker_groups.ipynb) has verl's.

# %%
ray.shutdown()
