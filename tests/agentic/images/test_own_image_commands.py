"""How the project's own images are built: from which folders, with which stages replaced, to which name."""

from pathlib import Path

import pytest

from agentic.images.__main__ import main
from agentic.images.buildctl import Client
from agentic.images.errors import ImageNameError
from agentic.images.own import NAMES, OwnImage, own_command, target_of

ROOT = Path(__file__).resolve().parents[3]


def test_each_image_has_a_dockerfile_whose_base_can_be_given() -> None:
    for name in NAMES:
        text = (ROOT / "images" / name / "Dockerfile").read_text()
        assert "\nARG " in text
        assert "# syntax" not in text, "that image would be fetched"


def test_stages_can_be_folders_and_arguments_be_given() -> None:
    target = target_of("r.example/team", "steps", "1")
    image = OwnImage("steps", target, {"BASE": "b:1"}, {"wheels": Path("/w")}, plain_http=True)
    command = own_command(Client("tcp://b:1"), image, ROOT)
    assert f"--local=context={ROOT}" in command
    assert f"--local=dockerfile={ROOT}/images/steps" in command
    assert "--opt=build-arg:BASE=b:1" in command
    assert "--opt=context:wheels=local:wheels" in command
    assert "--local=wheels=/w" in command
    pushed = "--output=type=image,name=r.example/team/agentic-rl/steps:1,push=true,registry.insecure=true"
    assert command[-1] == pushed


def test_certificates_and_authorities_are_given_to_the_client_that_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that notes what it is told, and fails."""
    (tmp_path / "buildctl").write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/told\nexit 1\n')
    (tmp_path / "buildctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    words = ["build", "steps", "--registry", "r.example/team", "--buildkit", "tcp://b:1"]
    assert main([*words, "--buildkit-tls", "/tls", "--ca-file", "/ca.pem"]) == 78
    told = (tmp_path / "told").read_text()
    assert "--tlscacert=/tls/ca.pem --tlscert=/tls/cert.pem --tlskey=/tls/key.pem build" in told
    assert "--registry-auth-tlscontext=host=r.example,ca=/ca.pem" in told


def test_a_registry_that_does_not_answer_may_pass(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "127.0.0.1:1/a/b:1", "--patience", "0"]) == 75
    assert "does not answer" in capfd.readouterr().err


def test_what_is_none_of_ours_and_what_is_no_tag_is_refused() -> None:
    with pytest.raises(ImageNameError, match="use one of steps, trainer"):
        target_of("r.example", "other", "1")
    with pytest.raises(ImageNameError, match="is no tag"):
        target_of("r.example", "steps", "not a tag")


def test_the_command_says_what_is_missing_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "Not/An Image"]) == 78
    assert capfd.readouterr().err.count("\n") == 1
