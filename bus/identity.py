"""Who somebody is: nkeys, NATS JWTs, credential tags, and the operator's registry of signing keys. Pure; no I/O.

Invariants: nothing unsafe enters a subject template (names and tag values are `[a-z0-9_-]{1,64}`, so `project:*` is refused);
a seed is in no repr and in no error; a JWT counts only after its signature was checked against the key that it names.
Format: NATS JWT v2, `b64url(header).b64url(claims).b64url(signature)` with header alg `ed25519-nkey`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import msgspec
import nkeys
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey  # PyNaCl is what nkeys signs with; nkeys itself can't verify with a public key alone

from .errors import ConfigError, Rejected
from .limits import SCOPE_ID_BYTES_MAX
from .subjects import is_key, is_token

KeyKind = Literal["operator", "account", "user"]
PREFIX: Final[Mapping[KeyKind, int]] = {
    "operator": nkeys.PREFIX_BYTE_OPERATOR,
    "account": nkeys.PREFIX_BYTE_ACCOUNT,
    "user": nkeys.PREFIX_BYTE_USER,
}
JWT_VERSION: Final = 2
JWT_BYTES_MAX: Final = 1 << 20  # the server's max_payload: no JWT that is pushed can be longer
SEED_BYTES: Final = 32
_AS_ISSUED: Final = "Use the file as it was issued."


# --- end users --------------------------------------------------------------------------------------
def user_token(key: bytes, user: str) -> str:
    """The identity token that stands for an end user wherever names stand: `usr_` and 16 characters of base32 of
    HMAC-SHA256(key, id). `key`: the tenant's, kept in the home alone.

    Any text is an id (1 to 256 bytes of UTF-8, no NUL), and two that differ in any character are two users. Raises Rejected.
    """
    try:
        raw = user.encode()
    except UnicodeEncodeError:
        raw = b""
    if not 1 <= len(raw) <= SCOPE_ID_BYTES_MAX or b"\0" in raw:
        raise Rejected(
            "An end user's id is empty, too long or no text.",
            reason="user_invalid",
            field="user",
            limit=SCOPE_ID_BYTES_MAX,
            advice=f"Give 1 to {SCOPE_ID_BYTES_MAX} bytes of text without NUL.",
        )
    return "usr_" + base64.b32encode(hmac.new(key, raw, hashlib.sha256).digest())[:16].decode().lower()


# --- keys -------------------------------------------------------------------------------------------
class Keypair:
    """An ed25519 key pair: `public` and `seed` in nkey text form. The seed is not in its repr."""

    def __init__(self, seed: str) -> None:
        """`ConfigError` if `seed` is not an nkey seed with a right checksum; the message doesn't show it."""
        try:
            prefix, raw = nkeys.decode_seed(seed.encode())
            if nkeys.encode_seed(raw, prefix).decode() != seed:
                raise ValueError("checksum")
            self._pair = nkeys.from_seed(seed.encode())
            self.public: str = self._pair.public_key.decode()
        except Exception:  # nkeys raises many types; chaining any of them could show the seed
            raise ConfigError("This is not an nkey seed.", reason="seed_invalid", advice=_AS_ISSUED) from None
        self.seed = seed

    def __repr__(self) -> str:
        return f"Keypair({self.public})"

    def sign(self, data: bytes) -> bytes:
        signature: bytes = self._pair.sign(data)
        return signature


def keypair(kind: KeyKind, entropy: bytes | None = None) -> Keypair:
    """A new key pair of 32 bytes of `entropy` (the system's by default)."""
    raw = os.urandom(SEED_BYTES) if entropy is None else entropy
    return Keypair(nkeys.encode_seed(raw, PREFIX[kind]).decode())


def raw_public(key: str) -> bytes:
    """The 32 bytes of a public nkey. `ValueError` if its checksum is wrong."""
    raw = base64.b32decode(key)
    if nkeys.crc16(bytearray(raw[:-2])).to_bytes(2, "little") != raw[-2:]:
        raise ValueError("checksum")
    return raw[1:-2]


def is_kind(key: str, kind: KeyKind) -> bool:
    """Whether `key` is a public nkey of that kind, checksum included."""
    if not is_key(key):
        return False
    try:
        raw_public(key)
    except ValueError:
        return False
    return base64.b32decode(key)[0] == PREFIX[kind]


# --- claims, as they lie in a JWT -------------------------------------------------------------------
class OperatorNats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    signing_keys: list[str]
    system_account: str = ""
    strict_signing_key_usage: bool = False
    type: str = ""
    version: int = 0


class UserNats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    issuer_account: str = ""
    tags: list[str] = []
    type: str = ""
    version: int = 0


class RegistryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What one signing key grants at most.

    tenant: account key. origin: highest origin, empty = none by claim. classification: highest. verbs: of `mem` and `ops` alike.
    delegated: it is the issuer's: it signs for children alone, of whom the ledger knows how far each may go.
    """

    tenant: str
    role: str
    origin: str
    classification: str
    verbs: list[str]
    delegated: bool = False


class RegistryNats(msgspec.Struct, frozen=True, kw_only=True):
    keys: dict[str, RegistryEntry]
    type: str = ""
    version: int = 0


N = TypeVar("N", bound=msgspec.Struct)


class _Claims(msgspec.Struct, frozen=True, kw_only=True):
    """The outer claims of any JWT; `nats` stays raw until its type is known."""

    iss: str
    sub: str
    nats: msgspec.Raw
    name: str = ""
    iat: int = 0
    exp: int = 0


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """Claims whose signature is right. The caller checks whether `issuer` may sign them. Times: unix seconds, 0 = none."""

    issuer: str
    subject: str
    name: str
    issued_at: int
    expires_at: int
    nats: bytes

    def body(self, type_: str, into: type[N]) -> N:
        """The typed part; `ConfigError` if these claims are of another type or version."""
        try:
            tag = msgspec.json.decode(self.nats, type=UserNats)
            if tag.type != type_ or tag.version != JWT_VERSION:
                raise ValueError(tag.type)
            return msgspec.json.decode(self.nats, type=into)
        except ValueError:
            raise ConfigError(f"This JWT is not of type {type_} version {JWT_VERSION}.", reason="jwt_invalid") from None


# --- JWT --------------------------------------------------------------------------------------------
_HEADER: Final = {"typ": "JWT", "alg": "ed25519-nkey"}


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unb64(text: str) -> bytes:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", text):
        raise ValueError("not base64url")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def encode_jwt(claims: Mapping[str, Any], signer: Keypair, issued_at: int) -> str:
    """Sign `claims` (`sub`, `name`, `nats`, perhaps `exp`); `jti` is their sha512/256 in base32. Times are unix seconds."""
    body = {**claims, "iat": issued_at, "iss": signer.public}
    digest = hashlib.new("sha512_256", msgspec.json.encode(body)).digest()
    body["jti"] = base64.b32encode(digest).rstrip(b"=").decode()
    signed = f"{_b64(msgspec.json.encode(_HEADER))}.{_b64(msgspec.json.encode(body))}"
    return f"{signed}.{_b64(signer.sign(signed.encode()))}"


def verify_jwt(jwt: str) -> Verified:
    """The claims of a JWT that is signed by the key it names as issuer; `ConfigError` otherwise. Expiry is not looked at."""
    try:
        if len(jwt) > JWT_BYTES_MAX:
            raise ValueError("too long")
        header, body, signature = jwt.strip().split(".")
        if msgspec.json.decode(_unb64(header)) != _HEADER:
            raise ValueError("another algorithm")
        claims = msgspec.json.decode(_unb64(body), type=_Claims)
        VerifyKey(raw_public(claims.iss)).verify(f"{header}.{body}".encode(), _unb64(signature))
    except (ValueError, BadSignatureError, TypeError):
        raise ConfigError("This JWT is damaged or wrongly signed.", reason="jwt_invalid", advice=_AS_ISSUED) from None
    return Verified(
        issuer=claims.iss,
        subject=claims.sub,
        name=claims.name,
        issued_at=claims.iat,
        expires_at=claims.exp,
        nats=bytes(claims.nats),
    )


# --- tags -------------------------------------------------------------------------------------------
MANY_VALUED: Final = ("project", "see", "tool", "verb")
SINGLE_VALUED: Final = ("tenant", "ceiling", "user", "person", "depth")


def parse_tags(tags: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Tag name → values in order. `Rejected` (tag_invalid) for an unknown or doubled tag, or an unsafe value."""
    values: dict[str, tuple[str, ...]] = {}
    for tag in tags:
        name, _, value = tag.partition(":")
        seen = values.get(name, ())
        known = name in MANY_VALUED or (name in SINGLE_VALUED and not seen)
        if not known or value in seen or not is_token(value):
            raise Rejected(
                "A credential tag is unknown, doubled or unsafe.",
                reason="tag_invalid",
                field=name if name in MANY_VALUED + SINGLE_VALUED else "tags",
                advice="Use each tag once, with a value of 1-64 characters of a-z, 0-9, '-' and '_'.",
            )
        values[name] = (*seen, value)
    return values


# --- credentials ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Credential:
    """What a client knows about itself. `key` is public, `tenant` empty outside tenants, `expires_at` unix seconds or None."""

    jwt: str = field(repr=False)
    seed: str = field(repr=False)
    key: str
    tenant: str
    name: str
    projects: tuple[str, ...]
    classifications: tuple[str, ...]
    tags: tuple[str, ...]
    expires_at: float | None

    @property
    def verbs(self) -> tuple[str, ...]:
        """What it is narrowed to; empty = all that its role may."""
        return parse_tags(self.tags).get("verb", ())


_CREDS = """-----BEGIN NATS USER JWT-----
{jwt}
------END NATS USER JWT------

************************* IMPORTANT *************************
NKEY Seed printed below can be used to sign and prove identity.
NKEYs are sensitive and should be treated as secrets.

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------

*************************************************************
"""
_CREDS_PARTS = re.compile(r"-{3,}BEGIN [^\n]*JWT-{3,}\s+(\S+)\s.*?-{3,}BEGIN [^\n]*SEED-{3,}\s+(\S+)\s", re.DOTALL)


def creds_text(jwt: str, user: Keypair) -> str:
    """An ordinary `.creds` file: any NATS client can use it."""
    return _CREDS.format(jwt=jwt, seed=user.seed)


def parse_creds(text: str) -> Credential:
    """Read a `.creds` file's text. `ConfigError` if it is damaged or key and JWT don't belong together; never shows the seed."""
    parts = _CREDS_PARTS.search(text)
    if parts is None:
        raise ConfigError("The credentials hold no user JWT and seed.", reason="creds_invalid", advice=_AS_ISSUED)
    jwt, seed = parts.groups()
    claims, user = verify_jwt(jwt), Keypair(seed)
    if claims.subject != user.public or not is_kind(user.public, "user"):
        raise ConfigError("The credentials' seed doesn't belong to their JWT.", reason="creds_invalid", advice=_AS_ISSUED)
    nats = claims.body("user", UserNats)
    try:
        tags = parse_tags(nats.tags)
    except Rejected as e:
        raise ConfigError(e.message, reason=e.reason, advice="Ask for a new credential.") from None
    return Credential(
        jwt=jwt,
        seed=seed,
        key=user.public,
        tenant="".join(tags.get("tenant", ())),
        name=claims.name,
        projects=tags.get("project", ()),
        classifications=tags.get("see", ()),
        tags=tuple(nats.tags),
        expires_at=float(claims.expires_at) if claims.expires_at else None,
    )


USER_KEY_BYTES: Final = 32


def derived_user_key(master: bytes, account: str) -> bytes:
    """The key for the ids of one tenant's end users, for homes that share one master key among several gatekeepers."""
    return hmac.digest(master, b"cordon.user-ids.1\0" + account.encode(), "sha256")


# --- registry ---------------------------------------------------------------------------------------
REGISTRY_TYPE: Final = "cordon_registry"


def registry_jwt(entries: Mapping[str, RegistryEntry], signer: Keypair, issued_at: int) -> str:
    """Which signing key grants what at most, signed by an operator signing key."""
    nats = RegistryNats(keys=dict(entries), type=REGISTRY_TYPE, version=JWT_VERSION)
    return encode_jwt({"sub": signer.public, "name": "registry", "nats": nats}, signer, issued_at)


def verify_registry(jwt: str, operator_jwt: str) -> dict[str, RegistryEntry]:
    """Issuer key → entry. `ConfigError` unless a signing key that the self-signed operator JWT names has signed it."""
    root, registry = verify_jwt(operator_jwt), verify_jwt(jwt)
    if root.issuer != root.subject or not is_kind(root.subject, "operator"):
        raise ConfigError("The operator JWT is not self-signed.", reason="operator_invalid", advice="Restore trust/operator.jwt.")
    if registry.issuer not in root.body("operator", OperatorNats).signing_keys:
        raise ConfigError(
            "The registry is not signed by a signing key of this operator.",
            reason="registry_untrusted",
            advice="Restore trust/registry.jwt of this home.",
        )
    keys = registry.body(REGISTRY_TYPE, RegistryNats).keys
    if not all(is_kind(key, "account") and is_kind(entry.tenant, "account") for key, entry in keys.items()):
        raise ConfigError("The registry names a key that is not an account's.", reason="registry_invalid")
    return keys
