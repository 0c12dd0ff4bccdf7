"""Settings come in layers, and whatever is wrong with them is one line that says what to do."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.models.settings import TinyModel
from agentic.sandbox.settings import BubblewrapSandbox, UnsafeProcessSandbox
from agentic.tasks.settings import MutationData
from workflows.errors import SettingsError
from workflows.settings import Settings, load_settings, profile_names, setting_names

FEW_TASKS = ["data.train=1", "data.same_template=1", "data.new_template=0"]


def refusal(profile: str, *arguments: str, **environment: str) -> str:
    with pytest.raises(SettingsError) as error:
        load_settings(profile, arguments, environment)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_command_line_wins_over_the_environment_over_the_profile_over_defaults() -> None:
    default = Settings().train.device
    assert default == "cuda"
    assert load_settings("demo", [], {}).train.device == "cpu"
    environment = {"AGENTIC__TRAIN__STEPS": "7", "AGENTIC__TRAIN__SEED": "3", "AGENTIC_WORKSPACE": "not a setting"}
    loaded = load_settings("demo", ["train.steps=9"], environment)
    assert (loaded.train.steps, loaded.train.seed) == (9, 3)


@pytest.mark.parametrize("argument", ["train.steps=4", "--train.steps=4"])
def test_dashes_before_a_setting_make_no_difference(argument: str) -> None:
    assert load_settings("demo", [argument], {}).train.steps == 4


def test_another_alternative_of_a_section_starts_it_afresh() -> None:
    demo = load_settings("demo", ["sandbox.scratch_mb=64"], {})
    assert isinstance(demo.sandbox, BubblewrapSandbox)
    assert demo.sandbox.scratch_mb == 64
    unsafe = load_settings("demo", ["sandbox.provider=unsafe-process"], {"AGENTIC__SANDBOX__SCRATCH_MB": "64"})
    assert isinstance(unsafe.sandbox, UnsafeProcessSandbox)
    assert load_settings("demo", ["rollout.agent.kind=tool-shell"], {}).rollout.agent.kind == "tool-shell"


def test_a_section_keeps_what_other_layers_do_not_name() -> None:
    loaded = load_settings("demo", ["data.train=16"], {})
    assert isinstance(loaded.data, MutationData)
    assert loaded.data.train == 16
    assert isinstance(loaded.model, TinyModel)


def test_lists_and_null_are_json() -> None:
    loaded = load_settings("demo", ['train.overrides=["trainer.x=1", "y=2"]', "train.threads=null"], {})
    assert loaded.train.overrides == ("trainer.x=1", "y=2")
    assert loaded.train.threads is None


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["train.stpes=3"], "unknown setting train.stpes: did you mean train.steps?"),
        (["trian.steps=3"], "unknown setting trian: did you mean train?"),
        (["data.trian=3"], "unknown setting data.trian: did you mean data.train?"),
        (["rollout.agent.max_turn=3"], "unknown setting rollout.agent.max_turn: did you mean rollout.agent.max_turns?"),
        (["train.steps=some"], 'train.steps is "some": input should be a valid integer, unable to parse'),
        (["train.steps=0"], 'train.steps is "0": input should be greater than 0'),
        (["train.device=tpu"], "train.device is \"tpu\": input should be 'cuda' or 'cpu'"),
        (["sandbox.provider=none"], "sandbox.provider is 'none': use one of 'bubblewrap'"),
        (["train.overrides=a=b"], 'train.overrides is "a=b": input should be a valid tuple'),
        (["train.overrides=[a"], "argument train.overrides=[a: the value is not JSON"),
        (["train=3", "train.steps=4"], "argument train.steps=4: train.steps is given as a whole as well"),
        (["train"], "'train' is no setting: write section.key=value, such as train.steps=4"),
        (["images.shards=9", *FEW_TASKS], "images.shards is 9 but there are 2 tasks: lower it to 2"),
        (["train.save_every=3", "train.validate_every=2"], "train.save_every is 3 and train.validate_every is 2:"),
        (["train.device=cuda"], "cluster.head.gpus is 0 but train.gpus_per_node is 1: set both"),
        (["train.nodes=2"], "train.nodes is 2 but the RayCluster has 1 pods: set cluster.workers.replicas to 1"),
        (
            ["cluster.workers.replicas=3"],
            "train.nodes is 1 but the RayCluster has 4 pods: set cluster.workers.replicas to 0",
        ),
        (
            ["train.device=cuda", "cluster.head.gpus=1", "train.nodes=2", "cluster.workers.replicas=1"],
            "cluster.workers.gpus is 8 but train.gpus_per_node is 1: set both",
        ),
        (
            ["cluster.buildkit.server_secret=s"],
            "cluster.buildkit.server_secret is s but images.buildkit_tls_secret is None: name",
        ),
        (["rollout.deadline_seconds=10"], "rollout.deadline_seconds is 10 but start + grading need"),
        (["sandbox.scratch_mb=4000"], "sandbox.scratch_mb is 4000 but"),
        (
            ["sandbox.provider=pod", "rollout.agent.kind=inside-shell"],
            "rollout.agent.kind is inside-shell, which works inside the sandbox, but sandbox.proxy_port opens no way",
        ),
        (
            ["sandbox.provider=pod", "sandbox.lease_seconds=90", "sandbox.renew_seconds=10"],
            "sandbox.lease_seconds is 90 but rollout and grading may take rollout.deadline_seconds (120): raise the",
        ),
        (["cluster.deadline_seconds=60"], "cluster.deadline_seconds is 60 but one step may take"),
        (["cluster.workspace_path=work"], 'cluster.workspace_path is "work": string should match pattern'),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], line: str) -> None:
    assert refusal("demo", *arguments).startswith(line)


def test_a_wrong_environment_variable_is_refused_like_an_argument() -> None:
    assert refusal("demo", AGENTIC__TRAIN__STPES="3") == "unknown setting train.stpes: did you mean train.steps?"


def test_where_trials_run_has_an_environment_variable_of_its_own() -> None:
    server = "rollout.trial_server.url=https://trials.example:8443"
    remote = load_settings("demo", [server], {"REMOTE_AGENT_USE_LOCAL_TRIAL": "false"}).rollout
    assert (remote.use_local_trial, remote.trial_server.url) == (False, "https://trials.example:8443")
    assert load_settings("demo", [], {"REMOTE_AGENT_USE_LOCAL_TRIAL": "true"}).rollout.use_local_trial
    both = {"REMOTE_AGENT_USE_LOCAL_TRIAL": "true", "AGENTIC__ROLLOUT__USE_LOCAL_TRIAL": "false"}
    assert load_settings("demo", [], both).rollout.use_local_trial, "the name that the guide uses wins"
    assert "name the trial server" in refusal("demo", REMOTE_AGENT_USE_LOCAL_TRIAL="false")
    assert refusal("demo", REMOTE_AGENT_USE_LOCAL_TRIAL="perhaps").startswith("rollout.use_local_trial is")


def test_an_unknown_profile_lists_those_that_exist() -> None:
    line = refusal("dmeo")
    assert all(name in line for name in profile_names())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- 1\n", "no sections"),
        ("a: [", "not YAML"),
        ("trian: {}\n", "did you mean"),
        ("train: {steps: 5}\ntrain: {seed: 1}\n", "train stands twice"),
        ("train:\n  steps: 5\n  steps: 6\n", "steps stands twice"),
    ],
)
def test_a_profile_file_may_be_given_by_path_and_is_checked(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("train: {steps: 5}\n")
    assert load_settings(str(path), [], {}).train.steps == 5
    path.write_text(text)
    assert reason in refusal(str(path))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(setting_names(Settings))), st.text(max_size=12).filter(lambda text: "\n" not in text))
def test_any_value_for_any_setting_is_taken_or_refused_in_one_line(name: str, value: str) -> None:
    try:
        load_settings("demo", [f"{name}={value}"], {})
    except SettingsError as error:
        assert str(error).count("\n") == 0, error  # noqa: PT017 - most values are refused, some are taken


@pytest.mark.parametrize(
    ("argument", "line"),
    [
        ("cluster.namespace=My_Name", 'cluster.namespace is "My_Name"'),
        ("cluster.namespace=", 'cluster.namespace is ""'),
        ("cluster.service_account=A B", 'cluster.service_account is "A B"'),
        ("cluster.queue=Gpu", 'cluster.queue is "Gpu"'),
        ("cluster.runs.claim=runs/1", 'cluster.runs.claim is "runs/1"'),
        ("cluster.runs.size=200", 'cluster.runs.size is "200"'),
        ("cluster.head.memory=lots", 'cluster.head.memory is "lots"'),
        ("cluster.light.memory=-1", 'cluster.light.memory is "-1"'),
        ("cluster.heavy.cpu=2 cores", 'cluster.heavy.cpu is "2 cores"'),
        ("cluster.trainer_image=a b", 'cluster.trainer_image is "a b"'),
        ("cluster.buildkit.memory=8G", 'cluster.buildkit.memory is "8G"'),
    ],
)
def test_what_the_api_server_would_refuse_hours_later_is_refused_at_load(argument: str, line: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings("demo", [argument], {})
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
