"""The client against a registry of its own: tokens, passwords, limits, authorities, and what is none of an answer."""

import asyncio
import base64
import json
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from fake_registry import FakeRegistry, Fault, Login

from agentic.images.errors import (
    ImageNameError,
    RateLimitedError,
    RegistryAnswerError,
    RegistryRefusedError,
    RegistryTlsError,
    RegistryUnavailableError,
)
from agentic.images.reference import Reference
from agentic.images.registry import Registry
from agentic.images.registry_login import Challenge, Logins
from agentic.images.registry_waiting import retry_after_seconds
from agentic.images.settings import RegistrySettings


def client(registry: FakeRegistry, logins: Logins | None = None, **settings: Any) -> Registry:
    """For one that speaks in the clear."""
    plain = {"patience_seconds": 5.0, "plain_http": (registry.host,)}
    return Registry(RegistrySettings(**{**plain, **settings}), logins or Logins())


def logins(host: str, user: str = "me", password: str = "secret") -> Logins:
    return Logins({host: {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}}, source="config.json")


def reference(registry: FakeRegistry, name: str = "tasks/one:latest") -> Reference:
    return Reference.parse(f"{registry.host}/{name}")


@pytest.mark.parametrize(
    ("name", "host", "repository", "tag"),
    [
        ("python", "docker.io", "library/python", "latest"),
        ("python:3.12-slim", "docker.io", "library/python", "3.12-slim"),
        ("moby/buildkit:v1", "docker.io", "moby/buildkit", "v1"),
        ("localhost/a:1", "localhost", "a", "1"),
        ("10.0.0.1:5000/a/b", "10.0.0.1:5000", "a/b", "latest"),
        (
            "r.example/swe-bench/astropy__astropy-12907:latest",
            "r.example",
            "swe-bench/astropy__astropy-12907",
            "latest",
        ),
    ],
)
def test_a_name_is_read_as_engines_read_it(name: str, host: str, repository: str, tag: str) -> None:
    found = Reference.parse(name)
    assert (found.host, found.repository, found.tag) == (host, repository, tag)
    assert Reference.parse(str(found)) == found


@pytest.mark.parametrize(
    "name",
    [
        *("", "r.example/UPPER/case", "r.example/a:", "r.example/a:bad tag", "a@sha256:12", "r.example/"),
        *("https://r.example/a", "r.example:port/a", "r ex.ample/a", "-r.example/a", "me@r.example/a"),
    ],
)
def test_what_no_engine_takes_is_refused(name: str) -> None:
    with pytest.raises(ImageNameError, match="is no image name"):
        Reference.parse(name)


def test_a_digest_counts_and_the_tag_does_not() -> None:
    digest = f"sha256:{'a' * 64}"
    pinned = Reference.parse("r.example/a:1").pinned(digest)
    assert str(pinned) == f"r.example/a@{digest}"
    assert pinned.version == digest


async def test_an_image_is_found_by_its_digest_and_a_missing_one_is_none() -> None:
    async with FakeRegistry() as registry, client(registry) as images:
        digest = registry.push("tasks/one", "latest")
        assert await images.digest_of(reference(registry)) == digest
        assert await images.digest_of(reference(registry, "tasks/two:latest")) is None
        assert registry.requests == [
            "GET /v2/",
            "HEAD /v2/tasks/one/manifests/latest",
            "HEAD /v2/tasks/two/manifests/latest",
        ]


async def test_a_registry_that_tells_no_digest_is_asked_for_the_manifest() -> None:
    async with FakeRegistry(tells_digests=False) as registry, client(registry) as images:
        assert await images.digest_of(reference(registry)) is None
        digest = registry.push("tasks/one", "latest")
        assert await images.digest_of(reference(registry)) == digest


async def test_tags_and_size_are_read_from_what_the_registry_says() -> None:
    layers = {"config": {"size": 10}, "layers": [{"size": 100}, {"size": 1000}]}
    async with FakeRegistry() as registry, client(registry) as images:
        inner = registry.push("tasks/one", "amd64", {"schemaVersion": 2, **layers})
        index = {
            "manifests": [
                {"digest": "x", "platform": {"os": "unknown"}},
                {"digest": inner, "platform": {"os": "linux"}},
            ]
        }
        registry.push("tasks/one", "latest", index)
        assert await images.bytes_of(reference(registry, "tasks/one:amd64")) == 1110
        assert await images.bytes_of(reference(registry)) == 1110, "the image of the index, not the attestation"
        assert await images.tags_of(reference(registry)) == ["amd64", "latest"]
        assert await images.tags_of(reference(registry, "tasks/none")) == []


@pytest.mark.parametrize("scheme", ["bearer", "basic"])
async def test_a_registry_that_asks_who_we_are_is_told(scheme: Any) -> None:
    async with (
        FakeRegistry(login=Login("me", "secret", scheme)) as registry,
        client(registry, logins(registry.host)) as images,
    ):
        digest = registry.push("tasks/one", "latest")
        assert await images.digest_of(reference(registry)) == digest
        assert await images.digest_of(reference(registry)) == digest
        assert registry.requests.count("GET /token") == (1 if scheme == "bearer" else 0), "a token is used again"


async def test_whoever_has_no_account_reads_what_is_public() -> None:
    async with (
        FakeRegistry(login=Login("me", "secret", lets_anybody_read=True)) as registry,
        client(registry) as images,
    ):
        digest = registry.push("tasks/one", "latest")
        assert await images.digest_of(reference(registry)) == digest
        assert [line for line in registry.shown if line.startswith("Basic")] == []


@pytest.mark.parametrize(
    "more",
    [
        ('Basic realm="packages"',),
        ("Negotiate",),
        ('Negotiate YIIabc/de==, Basic realm="a, b"',),
        ('Digest realm="x", nonce="a\\"b", qop=auth', 'Basic charset = "UTF-8", realm="x"'),
        ('Bearer realm=""',),
    ],
)
@pytest.mark.parametrize("scheme", ["bearer", "basic"])
async def test_the_challenge_that_we_can_answer_is_taken_of_several(more: tuple[str, ...], scheme: Any) -> None:
    login = Login("me", "secret", scheme, more_challenges=more)
    async with FakeRegistry(login=login) as registry, client(registry, logins(registry.host)) as images:
        digest = registry.push("tasks/one", "latest")
        assert await images.digest_of(reference(registry)) == digest


@pytest.mark.parametrize(
    ("headers", "chosen"),
    [
        (['bearer Realm="https://t/x",SERVICE=s , scope="a:b:pull,push"'], ("bearer", "https://t/x", "s")),
        (['Basic realm="x", Bearer realm="https://t", service="s"'], ("bearer", "https://t", "s")),
        (['Basic realm="x"', 'Bearer realm="https://t"'], ("bearer", "https://t", "")),
        (['BASIC realm="Nexus"'], ("basic", "Nexus", "")),
        (["Negotiate", "NTLM"], ("", "", "")),
        ([""], ("", "", "")),
        ([], ("", "", "")),
    ],
)
def test_challenges_are_read_in_the_forms_that_registries_send(headers: list[str], chosen: tuple[str, ...]) -> None:
    found = Challenge.choose(headers)
    assert (found.scheme, found.realm, found.service) == chosen


async def test_an_identity_token_is_exchanged() -> None:
    login = Login("me", "secret", identity_token="refresh-me")
    async with FakeRegistry(login=login) as registry:
        digest = registry.push("tasks/one", "latest")
        async with client(registry, Logins({registry.host: {"identitytoken": "refresh-me"}})) as images:
            assert await images.digest_of(reference(registry)) == digest
            assert "POST /token" in registry.requests


async def test_a_token_that_ran_out_is_asked_for_anew() -> None:
    async with FakeRegistry(login=Login("me", "secret")) as registry, client(registry, logins(registry.host)) as images:
        digest = registry.push("tasks/one", "latest")
        await images.digest_of(reference(registry))
        registry.tokens.clear()
        assert await images.digest_of(reference(registry)) == digest


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (lambda host: Logins(source="/login/config.json"), "there are no credentials for it in /login/config.json"),
        (lambda host: logins(host, password="wrong"), "the credentials in config.json are not enough"),
        (lambda host: Logins(helpers=frozenset([host]), source="c"), "kept by a helper program, which is not asked"),
    ],
)
@pytest.mark.parametrize("scheme", ["bearer", "basic"])
async def test_who_is_not_let_in_is_told_why(known: Any, said: str, scheme: Any) -> None:
    async with (
        FakeRegistry(login=Login("me", "secret", scheme)) as registry,
        client(registry, known(registry.host)) as images,
    ):
        registry.push("tasks/one", "latest")
        with pytest.raises(RegistryRefusedError, match=said) as refused:
            await images.digest_of(reference(registry))
        told = str(refused.value)
        assert "wrong" not in told
        assert base64.b64encode(b"me:wrong").decode() not in told


async def test_a_limit_is_waited_out_as_long_as_the_registry_says_and_by_everybody() -> None:
    async with FakeRegistry(faults=[Fault(429, headers={"Retry-After": "1"})]) as registry, client(registry) as images:
        digests = [registry.push(f"tasks/{number}", "latest") for number in range(4)]
        started = time.monotonic()
        found = await asyncio.gather(
            *(images.digest_of(reference(registry, f"tasks/{number}:latest")) for number in range(4))
        )
        assert found == digests
        assert time.monotonic() - started >= 1.0
        heads = [line for line in registry.requests if line.startswith("HEAD")]
        assert len(heads) <= 8, "nobody asked again before the time"


async def test_a_limit_longer_than_our_patience_is_told_at_once() -> None:
    fault = Fault(429, times=99, headers={"Retry-After": "3600"}, path="/v2/tasks")
    async with FakeRegistry(faults=[fault]) as registry, client(registry) as images:
        started = time.monotonic()
        with pytest.raises(RateLimitedError, match=r"limits how often it is asked \(429"):
            await images.digest_of(reference(registry))
        assert time.monotonic() - started < 3


async def test_a_limit_with_a_date_and_one_of_the_token_server_are_waited_out_too() -> None:
    at = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 1))
    faults = [Fault(429, path="/token", headers={"Retry-After": "0"}), Fault(429, headers={"Retry-After": at})]
    async with FakeRegistry(login=Login("me", "secret"), faults=faults) as registry:
        digest = registry.push("tasks/one", "latest")
        async with client(registry, logins(registry.host)) as images:
            assert await images.digest_of(reference(registry)) == digest


@pytest.mark.parametrize("answers", ["0", "Wed, 21 Oct 2015 07:28:00 GMT", "soon"])
async def test_a_limit_that_names_no_time_is_not_asked_in_a_rush(answers: str) -> None:
    fault = Fault(429, times=999, headers={"Retry-After": answers}, path="/v2/tasks")
    async with FakeRegistry(faults=[fault]) as registry, client(registry, patience_seconds=2.0) as images:
        with pytest.raises(RateLimitedError):
            await images.digest_of(reference(registry))
        assert len(registry.requests) <= 6


async def test_a_registry_that_wants_a_longer_pause_than_we_have_is_asked_once_by_all_together() -> None:
    fault = Fault(429, times=999, headers={"Retry-After": "3600"}, path="/v2/tasks")
    async with FakeRegistry(faults=[fault]) as registry, client(registry) as images:
        for number in range(20):
            with pytest.raises(RateLimitedError):
                await images.digest_of(reference(registry, f"tasks/{number}:latest"))
        assert registry.requests == ["GET /v2/", "HEAD /v2/tasks/0/manifests/latest"]


@pytest.mark.parametrize(
    ("value", "date", "seconds"),
    [
        ("120", "", 120.0),
        (" 7 ", "", 7.0),
        ("1.5", "", 1.5),
        ("0", "", None),
        ("-5", "", None),
        ("", "", None),
        ("\u00b2", "", None),
        ("Wed, 21 Oct 2099 07:28:30 GMT", "Wed, 21 Oct 2099 07:28:00 GMT", 30.0),
        ("Wednesday, 21-Oct-99 07:28:30 GMT", "Wed, 21 Oct 1999 07:28:00 GMT", 30.0),
        ("Wed Oct 21 07:28:30 2099", "Wed, 21 Oct 2099 07:28:00 GMT", 30.0),
        ("Wed, 21 Oct 2099 07:28:00 -0000", "Wed, 21 Oct 2099 07:27:00 GMT", 60.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2099 07:28:00 GMT", None),
    ],
)
def test_a_pause_is_read_in_all_forms_and_by_the_servers_own_clock(
    value: str, date: str, seconds: float | None
) -> None:
    assert retry_after_seconds(value, date) == seconds


async def test_a_server_error_is_tried_again_and_then_told() -> None:
    async with FakeRegistry(faults=[Fault(503)]) as registry, client(registry) as images:
        digest = registry.push("tasks/one", "latest")
        assert await images.digest_of(reference(registry)) == digest
        registry.faults.append(Fault(500, times=99))
        patient = client(registry, patience_seconds=0.2)
        async with patient as hasty:
            with pytest.raises(RegistryUnavailableError, match="answered 500"):
                await hasty.digest_of(reference(registry))
            asked = len(registry.requests)
            with pytest.raises(RegistryUnavailableError):
                await hasty.digest_of(reference(registry, "tasks/two:latest"))
            assert len(registry.requests) == asked, "who was waited for in vain is not asked for the next image"


async def test_nobody_there_is_not_a_missing_image() -> None:
    async with Registry(RegistrySettings(patience_seconds=0.0), Logins()) as images:
        with pytest.raises(RegistryUnavailableError, match="does not answer"):
            await images.digest_of(Reference.parse("127.0.0.1:1/tasks/one"))


async def test_a_web_server_that_is_no_registry_is_not_a_missing_image() -> None:
    async with FakeRegistry(has_api=False) as registry, client(registry) as images:
        with pytest.raises(RegistryAnswerError, match="is no registry: it answers 404 to /v2/"):
            await images.digest_of(reference(registry))


def make_certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Signed by itself, for 127.0.0.1."""
    key, certificate = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=registry"]
    files = ["-keyout", str(key), "-out", str(certificate), "-addext", "subjectAltName=IP:127.0.0.1,DNS:registry.test"]
    subprocess.run([*command, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return certificate, context


async def test_a_registry_that_signs_for_itself_is_trusted_by_its_file_and_by_nothing_else(tmp_path: Path) -> None:
    certificate, context = make_certificate(tmp_path)
    async with FakeRegistry(tls=context, login=Login("me", "secret")) as registry:
        digest = registry.push("tasks/one", "latest")
        known = logins(registry.host)
        async with client(registry, known, ca_file=str(certificate), plain_http=()) as images:
            assert await images.digest_of(reference(registry)) == digest
        async with client(registry, known, plain_http=()) as images:
            with pytest.raises(RegistryTlsError, match=r"not trusted .*images\.registry\.ca_file"):
                await images.digest_of(reference(registry))


async def test_a_registry_without_tls_has_to_be_named() -> None:
    async with FakeRegistry() as registry:
        digest = registry.push("tasks/one", "latest")
        async with client(registry, plain_http=()) as images:
            with pytest.raises(RegistryTlsError, match=r"speaks no TLS .*images\.registry\.plain_http"):
                await images.digest_of(reference(registry))
        async with client(registry) as images:
            assert await images.digest_of(reference(registry)) == digest


async def test_a_password_is_never_sent_in_the_clear_by_a_registry_with_tls(tmp_path: Path) -> None:
    certificate, context = make_certificate(tmp_path)
    async with FakeRegistry() as thief, FakeRegistry(tls=context, login=Login("me", "secret")) as registry:
        registry.realm = f"http://{thief.host}/token"
        async with client(registry, logins(registry.host), ca_file=str(certificate), plain_http=()) as images:
            with pytest.raises(RegistryAnswerError, match="a password would go in the clear"):
                await images.digest_of(reference(registry))
        assert thief.requests == []


async def test_what_a_redirect_leads_to_is_shown_nothing_and_its_challenge_is_not_answered(tmp_path: Path) -> None:
    certificate, context = make_certificate(tmp_path)
    async with (
        FakeRegistry(tls=context, login=Login("me", "secret")) as thief,
        FakeRegistry(tls=context, login=Login("me", "secret")) as registry,
    ):
        registry.redirects["/v2/tasks"] = f"https://{thief.host}"
        for known in (logins(registry.host), Logins({registry.host: {"identitytoken": "refresh-me"}})):
            async with client(registry, known, ca_file=str(certificate), plain_http=()) as images:
                with pytest.raises(RegistryRefusedError, match=r"sends us on to 127\.0\.0\.1, which asks who we are"):
                    await images.digest_of(reference(registry))
        assert thief.requests
        assert set(thief.shown) == {""}


@pytest.mark.parametrize("known", [{"auth": base64.b64encode(b"me:secret").decode()}, {"identitytoken": "refresh-me"}])
async def test_a_token_server_that_sends_us_on_does_not_send_what_we_show_along(known: dict[str, str]) -> None:
    login = Login("me", "secret", identity_token="refresh-me")
    async with FakeRegistry(login=login) as thief, FakeRegistry(login=login) as registry:
        registry.push("tasks/one", "latest")
        registry.redirects["/token"] = f"http://{thief.host}"
        async with client(registry, Logins({registry.host: known}, source="config.json")) as images:
            with pytest.raises(RegistryRefusedError, match="no token"):
                await images.digest_of(reference(registry))
        assert set(thief.shown) <= {""}


async def test_a_registry_in_the_clear_sends_no_password_to_another_host_in_the_clear() -> None:
    async with FakeRegistry() as thief, FakeRegistry(login=Login("me", "secret")) as registry:
        registry.realm = f"http://localhost:{thief.host.rpartition(':')[2]}/token"
        async with client(registry, logins(registry.host)) as images:
            with pytest.raises(
                RegistryAnswerError, match=r"in the clear: images\.registry\.plain_http has to name both"
            ):
                await images.digest_of(reference(registry))
        assert thief.requests == []


async def test_an_answer_that_left_tls_on_its_way_is_not_believed(tmp_path: Path) -> None:
    certificate, context = make_certificate(tmp_path)
    async with FakeRegistry() as anybody, FakeRegistry(tls=context) as registry:
        anybody.push("tasks/one", "latest")
        registry.redirects["/v2/tasks"] = f"http://{anybody.host}"
        async with client(registry, ca_file=str(certificate), plain_http=()) as images:
            with pytest.raises(RegistryAnswerError, match="where anybody could answer"):
                await images.digest_of(reference(registry))


@pytest.mark.parametrize("scheme", ["bearer", "basic"])
async def test_logins_of_other_programs_are_neither_sent_nor_in_the_way(
    scheme: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("default login someone password of-another-program\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with FakeRegistry(login=Login("me", "secret", scheme)) as registry:
        digest = registry.push("tasks/one", "latest")
        async with client(registry, logins(registry.host)) as images:
            assert await images.digest_of(reference(registry)) == digest
        basic = {line for line in registry.shown if line.startswith("Basic")}
        assert basic == {"Basic " + base64.b64encode(b"me:secret").decode()}


async def test_the_environments_proxy_is_used_and_its_exceptions_are(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeRegistry() as proxy, FakeRegistry() as registry:
        digest = registry.push("tasks/one", "latest")
        monkeypatch.setenv("http_proxy", f"http://{proxy.host}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        async with client(registry) as images:
            assert await images.digest_of(reference(registry)) == digest
        assert proxy.requests == []
        monkeypatch.setenv("no_proxy", "")
        async with client(registry) as images:
            assert await images.digest_of(reference(registry)) is None, "what answered is the proxy"
        assert proxy.requests == ["GET /v2/", "HEAD /v2/tasks/one/manifests/latest"]


async def test_a_connection_that_is_cut_before_tls_stands_may_pass() -> None:
    def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(cut, "127.0.0.1", 0) as server:
        host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Registry(RegistrySettings(patience_seconds=0.0), Logins()) as images:
            with pytest.raises(RegistryUnavailableError, match="does not answer"):
                await images.digest_of(Reference.parse(f"{host}/tasks/one"))


@pytest.mark.parametrize(
    "manifest",
    [
        {"manifests": [{"digest": "x", "platform": {"os": "unknown"}}]},
        {"schemaVersion": 1, "fsLayers": [{"blobSum": "sha256:0"}]},
        {"config": {}, "layers": []},
        {"manifests": 7},
    ],
)
async def test_a_manifest_without_sizes_is_told_and_no_traceback(manifest: dict[str, Any]) -> None:
    async with FakeRegistry() as registry, client(registry) as images:
        registry.push("tasks/one", "latest", manifest)
        with pytest.raises(RegistryAnswerError, match="tells no size"):
            await images.bytes_of(reference(registry))


async def test_a_file_of_authorities_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(RegistryTlsError, match=r"images\.registry\.ca_file: .* cannot be read"):
        async with Registry(RegistrySettings(ca_file=str(tmp_path / "none.pem")), Logins()):
            raise AssertionError("it was opened")


def test_logins_are_read_as_docker_writes_them(tmp_path: Path) -> None:
    auth = base64.b64encode(b"me:pass:word").decode()
    by_name = {"auth": "", "username": "you", "password": "p"}
    auths = {"https://index.docker.io/v1/": {"auth": auth}, "r.example": by_name}
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths, "credHelpers": {"h.example": "pass"}}))
    found = Logins.read(tmp_path)
    hub, other = found.find("docker.io"), found.find("r.example")
    assert hub is not None
    assert other is not None
    assert (hub.user, hub.password) == ("me", "pass:word")
    assert (other.user, other.password) == ("you", "p")
    assert found.find("h.example") is None
    assert "helper" in found.missing("h.example")
    assert Logins.read(tmp_path / "none").find("docker.io") is None
    assert "pass:word" not in repr(found)


@pytest.mark.parametrize("text", ["[]", "no json", '{"auths": {"r.example": {"auth": "%%%"}}}'])
def test_logins_that_cannot_be_read_are_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(RegistryRefusedError, match=r"config\.json"):
        Logins.read(tmp_path).find("r.example")
