"""Connections to the API server: the first shakes hands, those after it resume."""

import asyncio
import datetime
import ipaddress
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agentic.cluster.tls import make_tls


def authority(folder, name="authority"):
    """A certificate for 127.0.0.1 that is its own authority, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path


class Server:
    """Answers each line; notes which connections were resumed."""

    def __init__(self, certificate):
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate)
        self.resumed = []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0, ssl=self.context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error):
        self._server.close()
        await self._server.wait_closed()

    async def _answer(self, reader, writer):
        self.resumed.append(writer.get_extra_info("ssl_object").session_reused)
        writer.write(await reader.readline())
        writer.close()


async def ask(server, context):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    writer.write(b"hello\n")
    assert await reader.read() == b"hello\n"
    writer.close()


async def test_connections_after_the_first_resume_its_session(tmp_path):
    certificate = authority(tmp_path)
    context = make_tls(str(certificate), None, None)
    async with Server(certificate) as server:
        for _ in range(3):
            await ask(server, context)
        await asyncio.gather(*(ask(server, context) for _ in range(20)))
        await ask(server, context)
    assert server.resumed == [False] + [True] * 23


async def test_a_server_that_was_started_anew_is_shaken_hands_with_again(tmp_path):
    certificate = authority(tmp_path)
    context = make_tls(str(certificate), None, None)
    for _ in range(2):
        async with Server(certificate) as server:
            await ask(server, context)
            await ask(server, context)
        assert server.resumed == [False, True]


async def test_another_context_or_authority_resumes_nothing(tmp_path):
    certificate, other = authority(tmp_path), authority(tmp_path, "other")
    async with Server(certificate) as server:
        await ask(server, make_tls(str(certificate), None, None))
        await ask(server, make_tls(str(certificate), None, None))
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(server, make_tls(str(other), None, None))
    assert server.resumed == [False, False]


def test_connections_may_begin_while_others_shake_hands(tmp_path):
    context = make_tls(str(authority(tmp_path)), None, None)
    for _ in range(3):
        begun = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            begun.do_handshake()


async def test_many_that_begin_at_once_all_arrive(tmp_path):
    certificate = authority(tmp_path)
    async with Server(certificate) as server:
        context = make_tls(str(certificate), None, None)
        opened = await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", server.port, ssl=context) for _ in range(30))
        )
        for _, writer in opened:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer in opened))
