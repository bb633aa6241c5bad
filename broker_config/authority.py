"""Certificates: a small authority for trials, and the one for routes, which only the cluster's servers have to believe.

Invariant: an authority signs end certificates only (path length 0); a server's certificate can't be used to join as a route,
since only a route's says that it is for clients too.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS: Final = 3_650
CERTIFICATE_DAYS: Final = 825
CLOCK_SKEW: Final = timedelta(hours=1)  # of whoever verifies


@dataclass(frozen=True)
class Certificate:
    """PEM texts. The key is secret."""

    cert: str
    key: str = field(repr=False)


class Authority:
    """Signs with a key of its own, ECDSA on P-256. `now`: when its certificates begin."""

    def __init__(self, name: str, now: datetime | None = None) -> None:
        self._now = now or datetime.now(UTC)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(self._name, self._key.public_key(), AUTHORITY_DAYS)
        usage = _usage(digital_signature=False, key_cert_sign=True, crl_sign=True)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._cert = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())

    @property
    def certificate(self) -> Certificate:
        return _pem(self._cert, self._key)

    def sign(self, name: str, hosts: Sequence[str], *, client: bool = False) -> Certificate:
        """A certificate for a server at `hosts` (names and IP addresses); `client`: one that dials others, too."""
        key = ec.generate_private_key(ec.SECP256R1())
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if client else [])]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        own_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        cert = (
            self._builder(subject, key.public_key(), CERTIFICATE_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True, key_cert_sign=False, crl_sign=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectAlternativeName([_general_name(h) for h in hosts]), critical=False)
            .add_extension(own_key, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return _pem(cert, key)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - CLOCK_SKEW)
            .not_valid_after(self._now + timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )


def _usage(*, digital_signature: bool, key_cert_sign: bool, crl_sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(cert: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Certificate:
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Certificate(cert.public_bytes(serialization.Encoding.PEM).decode(), secret.decode())
