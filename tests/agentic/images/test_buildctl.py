"""What BuildKit's client is told, and what its last words are taken for."""

from pathlib import Path

import pytest

from agentic.images.buildctl import BuildOrder, Client, build_command, check_command, judge_build, judge_check
from agentic.images.reference import Reference
from agentic.images.settings import ImageSettings, RegistrySettings

ORDER = BuildOrder(
    "0123abcd",
    "task-one",
    (Reference.parse("r.example/t/one:env-0123abcd"), Reference.parse("r.example/t/one:latest")),
    Path("/workspace/datasets/d/tasks/one/environment"),
    {"agentic/base:local": "r.example/base:1"},
)

FAILED_RUN = """#5 [2/2] RUN python3 fetch.py
#5 0.102 Traceback (most recent call last):
#5 0.110 {printed}
#5 ERROR: process "/bin/sh -c python3 fetch.py" did not complete successfully: exit code: 1
------
 > [2/2] RUN python3 fetch.py:
0.110 {printed}
------
Dockerfile:2
--------------------
   1 |     FROM agentic/base:local
   2 | >>> RUN python3 fetch.py
   3 |
--------------------
error: failed to solve: process "/bin/sh -c python3 fetch.py" did not complete successfully: exit code: 1
"""


def test_an_image_is_pushed_under_all_its_names_with_its_cache_beside_it() -> None:
    command = build_command(Client("tcp://buildkitd:1234"), ORDER, ImageSettings())
    assert command[:5] == ["buildctl", "--addr=tcp://buildkitd:1234", "--wait", "--timeout=60", "build"]
    assert '--output=type=image,"name=r.example/t/one:env-0123abcd,r.example/t/one:latest",push=true' in command
    assert "--opt=context:agentic/base:local=docker-image://r.example/base:1" in command
    assert "--local=context=/workspace/datasets/d/tasks/one/environment" in command
    assert "--import-cache=type=registry,ref=r.example/t/one:agentic-rl-cache" in command
    assert any(
        word.startswith("--export-cache=type=registry,ref=r.example/t/one:agentic-rl-cache,") for word in command
    )
    assert not any("insecure" in word for word in command)


def test_a_registry_in_the_clear_certificates_and_authorities_are_told() -> None:
    settings = ImageSettings(cache="none", registry=RegistrySettings(plain_http=("r.example",)))
    command = build_command(Client("tcp://b:1", "/tls", "/ca.pem"), ORDER, settings)
    assert command[4:7] == ["--tlscacert=/tls/ca.pem", "--tlscert=/tls/cert.pem", "--tlskey=/tls/key.pem"]
    assert any(word.endswith(",push=true,registry.insecure=true") for word in command)
    assert "--registry-auth-tlscontext=host=r.example,ca=/ca.pem" in command
    assert not any("cache" in word for word in command)
    assert check_command(Client("tcp://b:1")) == ["buildctl", "--addr=tcp://b:1", "debug", "workers"]


def test_a_command_that_failed_is_told_with_what_it_printed_and_does_not_pass() -> None:
    failure = judge_build(FAILED_RUN.format(printed="ModuleNotFoundError: No module named 'requests'"))
    assert not failure.may_pass
    assert failure.reason.startswith('failed to solve: process "/bin/sh -c python3 fetch.py" did not complete')
    assert "it printed: Traceback" in failure.reason
    assert "No module named 'requests'" in failure.reason


@pytest.mark.parametrize(
    "printed",
    [
        "urllib.error.HTTPError: HTTP Error 503: Service Unavailable",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "Temporary failure in name resolution",
        "curl: (28) Operation timed out",
        "fatal: unable to access: Could not resolve host: example.org",
        "ERROR: HTTP error 503 while getting https://index.example/a.whl",
        "curl: (22) The requested URL returned error: 502",
        "2026-01-01 ERROR 429: Too Many Requests.",
        "npm ERR! 429 Too Many Requests - GET https://index.example/left-pad",
        "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url",
    ],
)
def test_a_command_that_met_trouble_of_the_network_may_pass_and_is_no_limit_of_all_images(printed: str) -> None:
    failure = judge_build(FAILED_RUN.format(printed=printed))
    assert (failure.may_pass, failure.is_limited) == (True, False)


@pytest.mark.parametrize(
    "printed",
    [
        "429 passed, 500 failed in 3.2 s",
        "test_status.py:503: AssertionError",
        "Dockerfile:429",
        "assert 401 == 429",
        "bash: -c: line 1: unexpected EOF while looking for matching `'",
        "added 502 packages in 12s",
    ],
)
def test_a_number_that_a_command_printed_is_no_answer_of_a_server(printed: str) -> None:
    failure = judge_build(FAILED_RUN.format(printed=printed))
    assert (failure.may_pass, failure.is_limited) == (False, False)


@pytest.mark.parametrize(
    ("error", "may_pass", "is_limited"),
    [
        ("failed to copy: httpReadSeeker: failed open: unexpected status code 429 Too Many Requests", True, True),
        ("toomanyrequests: You have reached your pull rate limit", True, True),
        ("failed to push r.example/a:1: unexpected status from PUT request: 502 Bad Gateway", True, False),
        ('failed to do request: Head "x": dial tcp 10.0.0.1:443: i/o timeout', True, False),
        ("rpc error: code = Unavailable desc = error reading from server: EOF", True, False),
        ("write /var/lib/buildkit/x: no space left on device", True, False),
        ("the build's pod is gone, code = Unavailable (its Job was deleted)", True, False),
        ("failed to push r.example/a:1: unexpected status from HEAD request: 401 Unauthorized", False, False),
        ("failed to authorize: failed to fetch oauth token: denied: requested access to the resource", False, False),
        ("r.example/base:1: failed to resolve source metadata: r.example/base:1: not found", False, False),
        ("failed to solve: dockerfile parse error on line 2: unknown instruction: RAN", False, False),
        *(
            (f"failed to solve: dockerfile parse error on line {line}: unknown instruction: RAN", False, False)
            for line in (401, 403, 429, 500, 502, 503, 504)
        ),
        ("failed to solve: base:429: failed to resolve source metadata: base:429: not found", False, False),
        ("failed to fetch anonymous token: unexpected status from GET request to https://a/t: 503", True, False),
        ("unexpected status from PUT request to https://r.example/v2/a/blobs/uploads/1: 429", True, True),
        ("failed to push: unexpected status from PUT request to https://r.example/v2/a: 403 Forbidden", False, False),
        ('failed to solve: failed to compute cache key: "/missing.txt": not found', False, False),
        ("it took longer than its 3600 s", False, False),
    ],
)
def test_errors_of_buildkit_are_told_apart(error: str, may_pass: bool, is_limited: bool) -> None:
    failure = judge_build(f"#1 [internal] load build definition\n#1 DONE 0.0s\nerror: {error}\n")
    assert (failure.reason, failure.may_pass, failure.is_limited) == (error, may_pass, is_limited)


def test_what_a_registry_says_in_further_lines_counts() -> None:
    """As docker-registry answers when two builds push the same layer."""
    said = (
        "error: failed to solve: failed to push r.example/a:1: errors:\n"
        "unknown: provided digest did not match uploaded content\n"
        "unknown: blob unknown to registry - sha256:4314e9\n\n"
    )
    failure = judge_build(said)
    assert failure.may_pass
    assert "provided digest did not match uploaded content unknown: blob unknown" in failure.reason


def test_a_reason_is_one_line_of_bounded_length_whatever_was_printed() -> None:
    failure = judge_build("error: " + "x" * 5000)
    assert len(failure.reason) < 700
    assert "\n" not in judge_build("a\n\nb\n").reason
    assert judge_build("").reason == "it printed nothing"


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ('error: failed to list workers: Unavailable: connection error: desc = "transport: dial tcp: refused"', ""),
        ("error: failed to list workers: Unavailable: dial tcp: lookup buildkitd: no such host", ""),
        (
            'error: failed to list workers: Unavailable: "transport: authentication handshake failed: tls: failed"',
            "set images.buildkit_tls_secret to certificates that it knows",
        ),
        (
            'exec: "buildctl": executable file not found in $PATH: unknown',
            "set images.builder_image to one that has buildctl",
        ),
    ],
)
def test_what_stands_between_us_and_buildkit_is_told_with_what_to_do(words: str, remedy: str) -> None:
    reason, found = judge_check(f"some line\n{words}\n")
    assert reason == words.removeprefix("error: ")
    assert found == remedy


def test_certificates_that_a_direct_client_would_not_show_are_refused_when_settings_are_read() -> None:
    with pytest.raises(ValueError, match=r"images\.buildkit_tls_secret is set but images\.builder is direct"):
        ImageSettings(builder="direct", buildkit_address="tcp://b:1", buildkit_tls_secret="tls")
