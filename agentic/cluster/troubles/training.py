"""Troubles of a run itself: paths, models, data, settings of verl, Ray, and rewards that teach nothing."""

from agentic.cluster.troubles.kinds import SAYING, Kind, sign

KINDS = (
    Kind(
        "rewards-all-zero",
        "every rollout of every step so far has reward 0.0",
        "look at one rollout (runs/RUN/rollouts/train.jsonl): do agents act at all, do tests run, are tasks too hard? "
        "Check the base model's resolve rate first",
        found_by="explain",
    ),
    Kind(
        "rollouts-lost",
        "most rollouts are lost to infrastructure and train nothing",
        "read infra_reason in runs/RUN/rollouts/train.jsonl: the commonest reason is in the message",
        transient=True,
        found_by="explain",
    ),
    Kind(
        "model-missing",
        "the model's folder is not where it is looked for, so its path was taken for a name on a hub",
        "run the step download-model, or correct model.path; in the cluster models lie under /var/model",
        (
            sign(
                SAYING,
                r"is not a local folder and is not a valid model identifier|Repo id must (?:be in the form|use alpha)",
                "transformers, utils/hub.py; huggingface_hub, utils/_validators.py",
            ),
        ),
    ),
    Kind(
        "model-incomplete",
        "the model's folder lacks shards, or one is cut",
        "run the step download-model again: it goes on where it was cut",
        (
            sign(
                SAYING,
                r"Error while deserializing header|^(?:\S+: )?\S+ is not complete: "
                r"|does not appear to have a file named (?:pytorch_model|model)",
                "safetensors; transformers; agentic.models",
            ),
        ),
    ),
    Kind(
        "model-gated",
        "the model asks for an account that accepted its terms",
        "accept them on the hub, put a token into a Secret or variable, and name it in model.token_variable",
        (sign(SAYING, r"GatedRepoError|gated repo\b", "huggingface_hub, errors.py"),),
    ),
    Kind(
        "data-incomplete",
        "the data set's folder lacks tasks, or its manifest",
        "run the step download-data again: it fetches what is missing",
        (sign(SAYING, r"is no complete data set", "agentic.training.jobs"),),
    ),
    Kind(
        "override-unknown",
        "verl does not know an option",
        "correct train.overrides; a new key is written with a + before it",
        (
            sign(
                SAYING,
                r"Could not override '|is not in struct|hydra\.errors\.\w+|ConfigAttributeError|ConfigKeyError",
                "hydra, _internal/config_loader_impl.py; omegaconf, dictconfig.py",
            ),
        ),
    ),
    Kind(
        "sizes-do-not-divide",
        "batch, GPUs and parallel sizes do not divide",
        "python3 workflows/submit.py plan names the nearest sizes that work",
        (
            sign(
                SAYING,
                r"must be divisible by (?:minimal possible batch size|ulysses_sp_size|parameter_sync_step)"
                r"|must be divisible by tensor parallel size",
                "verl 0.9.1, utils/config.py, models/transformers and trainer/ppo; vLLM 0.24, config/model.py",
            ),
        ),
    ),
    Kind(
        "ray-version",
        "the job's Ray or Python is another version than the cluster's",
        "use one image for head, workers and job",
        (sign(SAYING, r"Version mismatch: The cluster was started with", "Ray 2.60, _private/utils.py"),),
    ),
    Kind(
        "ray-node-died",
        "a node of the Ray cluster is gone",
        "look at its pod: kubectl describe pod; training goes on from the last checkpoint",
        (
            sign(
                SAYING,
                r"has been marked dead|The actor died because its node has died|Owner's node has crashed"
                r"|ray\.exceptions\.NodeDiedError",
                "Ray 2.60, gcs and ray/exceptions.py",
            ),
        ),
        transient=True,
    ),
    Kind(
        "port-taken",
        "a port is taken already",
        "set the port to 0 (any), or end what listens there",
        (sign(SAYING, r"[Aa]ddress already in use|EADDRINUSE", "Linux, EADDRINUSE"),),
        transient=True,
    ),
    Kind(
        "package-missing",
        "a Python package is not in the image",
        "use the trainer's image for this step, or build it anew",
        (sign(SAYING, r"^ModuleNotFoundError: |the Python package \S+ is missing", "Python 3.12"),),
    ),
    Kind(
        "permission-denied",
        "a file may not be read or written by this user",
        "make the volume writable for the pod's user (fsGroup), or run as the image's own",
        (sign(SAYING, r"^PermissionError: |no permission at ", "Python 3.12; steps.failures"),),
    ),
    Kind(
        "path-missing",
        "a file or folder is not where it is looked for",
        "correct the path; in the cluster models lie under /var/model and data sets under /var/model-dataset",
        (
            sign(
                SAYING,
                r"^FileNotFoundError: |missing file at |\[Errno 2\] No such file or directory",
                "Python 3.12; steps.failures",
            ),
        ),
        is_general=True,
    ),
)
