"""The client and the servers' certificates: whom it believes, what it says to whom it doesn't, and several servers of one bus."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import bus
from broker_config.authority import Authority, Certificate
from bus.errors import ConfigError, Unavailable
from bus.servers import SERVERS_MAX, servers

from .rim import Broker, broker, creds, gatekeeper

CREDS = creds("project:p1")


class Wire:
    """Somebody on the line: greets as a server without TLS, and keeps what it hears."""

    def __init__(self, greeting: str) -> None:
        self.heard = b""
        self._greeting = f"INFO {greeting}\r\n".encode()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._greeting)
        self.heard += await reader.read(4_096)
        writer.close()


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("test")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Path:
    made = tmp_path_factory.mktemp("tls")
    (made / "ca.crt").write_text(authority.certificate.cert)
    (made / "other-ca.crt").write_text(Authority("another").certificate.cert)
    return made


def with_tls(folder: Path, name: str, made: Certificate) -> str:
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    cert.write_text(made.cert)
    key.write_text(made.key)
    return f'tls: {{ cert_file: "{cert}", key_file: "{key}", min_version: "1.3" }}'


@pytest.fixture(scope="module")
def server(folder: Path, authority: Authority) -> Iterator[Broker]:
    with broker(folder, with_tls(folder, "right", authority.sign("right", ["127.0.0.1"]))) as made:
        yield made


def tls(server: Broker) -> str:
    return server.url.replace("nats:", "tls:")


def test_a_server_that_proves_its_name_is_believed(folder: Path, server: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        where = servers(tls(server), str(folder / "ca.crt"))
        async with gatekeeper(tls(server), tls=where.tls) as rim:
            async with bus.connect(tls(server), CREDS, ca_file=str(folder / "ca.crt")) as memory:
                assert (await memory.write("over TLS")).id == "mem_0"
            monkeypatch.setenv("CORDON_CA", str(folder / "ca.crt"))
            async with bus.connect(server.url, CREDS) as memory:  # the CA says it, where the address doesn't
                await memory.query("over TLS?")
            assert len(rim.seen) == 2

    asyncio.run(scenario())


def test_a_ca_that_the_environment_names_is_not_asked_of_a_home_on_this_machine(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        with broker(folder) as plain:
            (tmp_path / "run").mkdir()
            (tmp_path / "run" / "status.json").write_text(f'{{"url": "{plain.url}"}}')
            monkeypatch.setenv("CORDON_CA", str(folder / "ca.crt"))
            monkeypatch.setenv("CORDON_HOME", str(tmp_path))
            monkeypatch.delenv("CORDON_URL", raising=False)
            async with gatekeeper(plain.url), bus.connect(creds=CREDS) as memory:
                await memory.query("who is there?")
            with pytest.raises(Unavailable, match="no TLS"):
                async with bus.connect(plain.url, CREDS):
                    pass

    asyncio.run(scenario())


def test_a_server_of_another_authority_or_name_is_not(folder: Path, server: Broker, authority: Authority) -> None:
    async def refused(url: str, ca: str) -> str:
        with pytest.raises(Unavailable) as e:
            async with bus.connect(url, CREDS, ca_file=str(folder / ca), timing=bus.Timing(close_s=0.2)):
                pass
        return str(e.value)

    async def scenario() -> None:
        assert "certificate verify failed" in (await refused(tls(server), "other-ca.crt")).lower()
        with broker(folder, with_tls(folder, "wrong", authority.sign("wrong", ["broker.example"]))) as wrong:
            assert "certificate verify failed" in (await refused(tls(wrong), "ca.crt")).lower()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "greeting",
    ['{"server_id":"x","max_payload":1048576,"auth_required":true,"nonce":"abc"}', '{"server_id":"x","max_payload":1048576}'],
    ids=["asks who it is", "asks nothing"],
)
@pytest.mark.parametrize("scheme", ["nats", "tls"])
def test_nothing_is_said_to_a_server_that_switches_tls_off(folder: Path, greeting: str, scheme: str) -> None:
    async def scenario() -> None:
        wire = Wire(greeting)
        line = await asyncio.start_server(wire, "127.0.0.1", 0)
        url = f"{scheme}://127.0.0.1:{line.sockets[0].getsockname()[1]}"
        with pytest.raises(Unavailable, match="no TLS"):
            async with bus.connect(url, CREDS, ca_file=str(folder / "ca.crt")):
                pass
        line.close()
        assert wire.heard == b""

    asyncio.run(scenario())


def test_a_server_that_is_down_is_passed_over_and_one_that_dies_is_left(folder: Path) -> None:
    async def scenario() -> None:
        dead = Broker(folder)
        with broker(folder) as first:
            async with bus.connect(f"{dead.url}, {first.url}", CREDS) as memory:
                async with gatekeeper(first.url):
                    await memory.write("whichever is there")
                first.kill()
                dead.start()
                try:
                    async with gatekeeper(dead.url):
                        await memory.write("the other one by now")
                finally:
                    dead.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "url",
    ["nats://a:1,", "nats://a:1,tls://b:2", ["nats://a:1", " tls://b:2 "], "wss://a:1,wss://b:1"],
    ids=["a comma too many", "one says TLS", "a list", "websockets"],
)
def test_addresses_of_one_bus(url: str | list[str]) -> None:
    where = servers(url)
    assert len(where.urls) == (1 if url == "nats://a:1," else 2)
    assert (where.tls is not None) == ("tls" in str(where) or "wss" in str(where))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "url_missing"),
        (",", "url_missing"),
        ("nats://a:1,http://b", "url_invalid"),
        ("nats://a:1,ws://b:1", "url_invalid"),
        (",".join(f"nats://a:{n + 1}" for n in range(SERVERS_MAX + 1)), "url_invalid"),
        ("nats://a:70000", "url_invalid"),
    ],
)
def test_what_is_no_address_is_refused_by_name(url: str, reason: str) -> None:
    with pytest.raises(ConfigError) as e:
        servers(url)
    assert e.value.reason == reason


def test_a_ca_that_can_not_be_read_is_refused_and_a_plain_websocket_beside_one(folder: Path) -> None:
    (folder / "nothing.crt").write_text("no certificate")
    for path in ("nothing.crt", "missing.crt"):
        with pytest.raises(ConfigError) as e:
            servers("tls://a:1", str(folder / path))
        assert e.value.reason == "ca_invalid"
    with pytest.raises(ConfigError):
        servers("ws://a:1", str(folder / "ca.crt"))


def test_a_certificate_of_a_server_is_none_of_a_route(authority: Authority) -> None:
    from cryptography import x509

    for client in (False, True):
        made = x509.load_pem_x509_certificate(authority.sign("one", ["10.0.0.1", "a.example"], client=client).cert.encode())
        uses = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert (x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH in uses) == client
        assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
