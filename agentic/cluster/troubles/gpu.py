"""Troubles of GPUs: memory, age, drivers, links; and of the engine that shares them with the trainer."""

from agentic.cluster.troubles.kinds import SAYING, Kind, sign

KINDS = (
    Kind(
        "gpu-memory",
        "CUDA ran out of memory",
        "lower train.max_tokens_per_gpu, set train.offload=true, lower train.gpu_memory_utilization (0.4 to 0.6) or "
        "train.rollouts_per_prompt",
        (
            sign(
                SAYING, r"CUDA out of memory|CUDA error: out of memory", "PyTorch 2.11, c10/cuda/CUDACachingAllocator"
            ),
            sign(SAYING, r"torch\.(?:cuda\.)?OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED", "PyTorch 2.11; cuBLAS"),
        ),
    ),
    Kind(
        "engine-memory",
        "the inference engine finds too little GPU memory for its weights and its cache",
        "change train.gpu_memory_utilization as the message says, raise train.tensor_parallel, or lower "
        "train.max_response_tokens",
        (
            sign(
                SAYING,
                r"No available memory for the cache blocks|larger than the available KV cache"
                r"|is less than desired GPU memory utilization",
                "vLLM 0.24, v1/core/kv_cache_utils.py and v1/worker/utils.py",
            ),
        ),
    ),
    Kind(
        "gpu-too-old",
        "the GPU's compute capability is below 8.0 (P100, V100, T4), which the images are not built for",
        "use GPUs from Ampere on: A10, A100, A800, L20, L40, H100, H800, H20",
        (
            sign(
                SAYING,
                r"no kernel image is available for execution on the device",
                "CUDA runtime, cudaErrorNoKernelImageForDevice",
            ),
            sign(
                SAYING,
                r"Bfloat16 is only supported on GPUs|FlashAttention only supports Ampere GPUs or newer"
                r"|with CUDA capability sm_\d+ is not compatible with the current PyTorch",
                "vLLM 0.24, platforms/cuda.py; flash-attn 2; PyTorch 2.11, torch/cuda/__init__.py",
            ),
        ),
    ),
    Kind(
        "gpu-driver",
        "no usable NVIDIA driver in the container",
        "install the driver and NVIDIA's container runtime on the node, or one that is new enough for the image's CUDA",
        (
            sign(
                SAYING,
                r"Found no NVIDIA driver|driver on your system is too old|driver version is insufficient"
                r"|no CUDA-capable device is detected|No CUDA GPUs are available|libcuda\.so\.1: cannot open",
                "PyTorch 2.11, torch/cuda/__init__.py and c10/cuda; CUDA runtime",
            ),
        ),
    ),
    Kind(
        "gpu-fault",
        "a GPU is broken",
        "cordon the node, and have the GPU reset or replaced (nvidia-smi -q; dmesg shows the Xid)",
        (
            sign(
                SAYING,
                r"uncorrectable ECC error|GPU has fallen off the bus|GPU is lost"
                r"|\bXid \(PCI:[0-9a-f:.]+\): (?:48|63|64|74|79|94|95)\b",
                "CUDA runtime, cudaErrorECCUncorrectable; NVIDIA driver",
            ),
        ),
        transient=True,
    ),
    Kind(
        "gpu-links",
        "the GPUs cannot talk to each other",
        "set NCCL_SOCKET_IFNAME and NCCL_DEBUG=INFO in the trainer's environment; look at /dev/shm and the network",
        (
            sign(
                SAYING,
                r"NCCL error|nccl(?:System|Internal|UnhandledCuda|Remote|InvalidUsage)\w*(?:Error)?"
                r"|Watchdog caught collective operation timeout",
                "PyTorch 2.11, ProcessGroupNCCL; NCCL",
            ),
        ),
        transient=True,
    ),
    Kind(
        "too-few-gpus",
        "Ray has fewer GPUs than training wants",
        "make cluster.head.gpus and train.gpus_per_node what the nodes have, and train.nodes their number",
        (
            sign(
                SAYING,
                r"Total available GPUs [\d.]+ is less than total desired GPUs",
                "verl 0.9.1, single_controller/ray/base.py",
            ),
        ),
    ),
    Kind(
        "engine-failed",
        "the inference engine did not start",
        "read the engine's log above this line: the first error counts",
        (
            sign(
                SAYING,
                r"Engine core initialization failed|EngineDeadError|vLLM ended with exit code",
                "vLLM 0.24, v1/engine/utils.py; agentic.training",
            ),
        ),
        transient=True,
        is_general=True,
    ),
)
