# %% [markdown] tags=["slow"]
# # 4. Megatron: one layer over four ranks
#
# Tensor parallelism (TP) splits each matrix of a layer over ranks. The four workers here hold a quarter of a gated MLP
# each, from the package megatron-core; the caller still sees one layer.
#
# verl 0.9.1 no longer has some names of verl's own tutorial, which this chapter follows:
#
# | gone | instead |
# |---|---|
# | `NVMegatronRayWorkerGroup` with its `tp_size`, `pp_size`, `dp_size` | `RayWorkerGroup`; the workers are asked |
# | `MegatronWorker` | `Worker`, which joins Megatron's groups itself |
# | `Dispatch.MEGATRON_COMPUTE` | `make_nd_compute_dataproto_dispatch_fn(mesh_name)` |
# | its argument, a list with one entry for each data-parallel rank | a `TensorDict`, which the mesh splits |
# | `ParallelLlamaMLP` | `MLP` of megatron-core, with the same SwiGLU |
#
# Without an argument: four ranks on CPUs over gloo, each size a sixty-fourth. `--gpu`: four GPUs over NCCL with the
# sizes of Llama-2-7B (in the notebook: `USE_GPU = True`). With fewer GPUs the ranks share them and stay with gloo: NCCL
# wants a GPU for each rank.

# %%
import os
import sys
from pathlib import Path

os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")  # verl warns of each process that sees no GPU

import ray
import torch
from tensordict import TensorDict
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

USE_GPU = "--gpu" in sys.argv
TENSOR_PARALLEL_SIZE = 4
SEQUENCE, BATCH, HIDDEN, FFN_HIDDEN = (2048, 16, 4096, 11008) if USE_GPU else (32, 16, 64, 172)
if USE_GPU and not torch.cuda.is_available():
    sys.exit("--gpu: PyTorch finds no GPU here")
OWN_GPUS = USE_GPU and torch.cuda.device_count() >= 4  # with fewer, the workers share what there is


def device_of(rank: int) -> torch.device:
    return torch.device("cuda", rank % torch.cuda.device_count()) if USE_GPU else torch.device("cpu")


ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

# %% [markdown]
# ## The worker
#
# A worker finds `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` in its environment, so `init_process_group` needs
# no argument but the backend. Then it tells verl its place in a mesh, here called `mlp`: which part of a batch it gets
# (its data-parallel rank), and whether its result is taken. The four ranks of one layer have the same result after
# their all-reduce, so one of them answers.
#
# Megatron wants the sequence first, verl splits the first dimension of a batch, so `run_layer` turns the tensor twice.


# %%
@ray.remote
class MLPLayerWorker(Worker):
    def __init__(self) -> None:
        super().__init__()
        from megatron.core import parallel_state

        self.device = device_of(self.rank)
        if USE_GPU:
            torch.cuda.set_device(self.device)
        torch.distributed.init_process_group("nccl" if OWN_GPUS else "gloo")
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=TENSOR_PARALLEL_SIZE)
        self._register_dispatch_collect_info(
            "mlp",
            dp_rank=parallel_state.get_data_parallel_rank(),
            is_collect=parallel_state.get_tensor_model_parallel_rank() == 0,
        )
        self._register_dispatch_collect_info("pairs", dp_rank=self.rank // 2, is_collect=self.rank % 2 == 0)

    @register(Dispatch.ONE_TO_ALL)
    def get_sizes(self) -> tuple[int, int, int, int]:
        from megatron.core import parallel_state

        return (
            self.world_size,
            parallel_state.get_tensor_model_parallel_world_size(),
            parallel_state.get_pipeline_model_parallel_world_size(),
            parallel_state.get_data_parallel_world_size(),
        )

    @register(Dispatch.ONE_TO_ALL)
    def init_model(self, hidden_size: int, ffn_hidden_size: int) -> None:
        from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
        from megatron.core.transformer import TransformerConfig
        from megatron.core.transformer.mlp import MLP, MLPSubmodules

        config = TransformerConfig(
            num_layers=1,
            num_attention_heads=TENSOR_PARALLEL_SIZE,
            hidden_size=hidden_size,
            ffn_hidden_size=ffn_hidden_size,
            gated_linear_unit=True,
            activation_func=torch.nn.functional.silu,
            add_bias_linear=False,
            tensor_model_parallel_size=TENSOR_PARALLEL_SIZE,
            use_cpu_initialization=True,
        )
        torch.manual_seed(10)  # the same on each rank: each makes the whole matrix and keeps its part
        submodules = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
        self.layer = MLP(config, submodules, ffn_hidden_size=ffn_hidden_size).to(self.device)

    @register(Dispatch.ONE_TO_ALL)
    def get_weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layer.linear_fc1.weight.detach().cpu(), self.layer.linear_fc2.weight.detach().cpu()

    @register(make_nd_compute_dataproto_dispatch_fn(mesh_name="mlp"))
    @torch.no_grad()
    def run_layer(self, batch: TensorDict) -> TensorDict:
        y, _ = self.layer(batch["x"].transpose(0, 1).contiguous().to(self.device))
        return TensorDict({"y": y.transpose(0, 1).contiguous().cpu()}, batch_size=batch.batch_size)

    @register(make_nd_compute_dataproto_dispatch_fn(mesh_name="pairs"))
    def sign(self, batch: TensorDict) -> TensorDict:
        return TensorDict({"row": batch["row"], "rank": torch.full(batch.batch_size, self.rank)}, batch.batch_size)


# %% [markdown]
# ## The group
#
# `make setup` keeps megatron-core in a folder of its own, `.venv/megatron-core`: verl takes other paths wherever it
# finds Megatron. `worker_env` shows that folder to these workers alone. (Where Megatron is installed, it does nothing.)

# %%
resource_pool = RayResourcePool([4], use_gpu=OWN_GPUS, max_colocate_count=1)
layer_worker_group = RayWorkerGroup(
    resource_pool,
    RayClassWithInitArgs(cls=MLPLayerWorker),
    worker_env={"PYTHONPATH": str(Path(sys.prefix) / "megatron-core")},
)
world_size, tp_size, pp_size, dp_size = layer_worker_group.get_sizes()[0]
print(world_size, tp_size, pp_size, dp_size)
assert (world_size, tp_size, pp_size, dp_size) == (4, 4, 1, 1)

# %% [markdown]
# World, tensor, pipeline and data-parallel size: the one data-parallel rank gets the whole batch of 16.

# %%
layer_worker_group.init_model(hidden_size=HIDDEN, ffn_hidden_size=FFN_HIDDEN)
x = torch.rand(SEQUENCE, BATCH, HIDDEN)
output = layer_worker_group.run_layer(TensorDict({"x": x.transpose(0, 1)}, batch_size=[BATCH]))
y = output["y"].transpose(0, 1)
print(list(y.shape))
assert y.shape == (SEQUENCE, BATCH, HIDDEN)

# %% [markdown]
# ## Is it the same layer?
#
# The shape alone proves little. A rank holds some columns of gate and up and the same rows of down, so its part of the
# output is a sum over its columns, and the all-reduce adds the four parts. Done here by hand, for the first positions:

# %%
parts = []
for gate_and_up, down in layer_worker_group.get_weights():
    gate, up = gate_and_up.chunk(2)
    parts.append((torch.nn.functional.silu(x[:8] @ gate.T) * (x[:8] @ up.T)) @ down.T)
print([list(weight.shape) for weight in layer_worker_group.get_weights()[0]])
assert torch.allclose(y[:8], sum(parts), rtol=1e-3, atol=1e-4)
assert not torch.allclose(y[:8], parts[0], rtol=1e-3, atol=1e-4)

# %% [markdown]
# ## What a mesh does with two data-parallel ranks
#
# A mesh is only what workers announced, and may have nothing to do with Megatron. These four also announced `pairs`:
# ranks 0 and 1 get the first half of a batch, ranks 2 and 3 the second, and the first of each pair answers. Each puts
# its rank beside the rows that it got.

# %%
signed = layer_worker_group.sign(TensorDict({"row": torch.arange(8)}, batch_size=[8]))
print(signed["row"].tolist())
print(signed["rank"].tolist())
assert signed["row"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
assert signed["rank"].tolist() == [0, 0, 0, 0, 2, 2, 2, 2]

# %% [markdown]
# verl's own Megatron engine does the same at scale: `verl/workers/engine_workers.py` registers meshes called `train`,
# `actor` and `ref`, and its methods have this dispatch.

# %%
ray.shutdown()
