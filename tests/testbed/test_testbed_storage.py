"""What pods of the workflow find on the node of the cluster for tests."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agentic.cluster.objects.claims import claims, claims_of
from agentic.cluster.settings import ClusterSettings
from testbed.pipeline_image import ROOT, environment, host_mounts, outermost
from testbed.storage import volume

FOLDERS = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(lambda parts: Path("/", *parts))


@given(st.lists(FOLDERS))
def test_folders_that_lie_in_another_are_left_out_and_nothing_else(folders: list[Path]) -> None:
    kept = outermost(folders)
    assert len(set(kept)) == len(kept)
    assert all(any(folder.is_relative_to(one) for one in kept) for folder in folders)
    assert not any(one != other and one.is_relative_to(other) for one in kept for other in kept)


def test_pods_see_the_checkout_and_its_python_where_they_lie() -> None:
    mounts = json.loads(host_mounts())
    settings = ClusterSettings.model_validate({"mounts": mounts})
    assert all(mount.host_path == mount.mount_path for mount in settings.mounts)
    seen = [Path(mount.mount_path) for mount in settings.mounts]
    program = Path(environment()["PATH"].partition(":")[0]) / "python"
    for path in (ROOT, program, program.resolve()):
        assert any(path.is_relative_to(folder) for folder in seen), path


def test_each_claim_binds_the_volume_that_was_made_for_it_and_no_other() -> None:
    settings = ClusterSettings(namespace="mine")
    for claim, asked in zip(claims_of(settings).values(), claims(settings), strict=True):
        made = volume("mine", claim, Path("/somewhere"))
        assert made["spec"]["claimRef"] == {key: asked["metadata"][key] for key in ("namespace", "name")}
        assert made["metadata"]["name"] != volume("other", claim, Path("/somewhere"))["metadata"]["name"]
        assert set(asked["spec"]["accessModes"]) <= set(made["spec"]["accessModes"])
        assert asked["spec"]["resources"]["requests"]["storage"] == made["spec"]["capacity"]["storage"]
