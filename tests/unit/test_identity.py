"""Keys, JWTs, tags, credentials and the registry: what is accepted, and beside it what is refused."""

from __future__ import annotations

import base64
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_config import claims
from bus.errors import ConfigError, Rejected
from bus.identity import (
    Keypair,
    RegistryEntry,
    creds_text,
    encode_jwt,
    is_kind,
    keypair,
    parse_creds,
    parse_tags,
    registry_jwt,
    verify_jwt,
    verify_registry,
)

NOW = 1_780_000_000
OPERATOR, SIGNING = keypair("operator", b"1" * 32), keypair("operator", b"2" * 32)
ACCOUNT, ROLE_KEY = keypair("account", b"3" * 32), keypair("account", b"4" * 32)
USER = keypair("user", b"5" * 32)
OPERATOR_JWT = claims.operator_jwt(OPERATOR, "cordon", ACCOUNT.public, [SIGNING.public], NOW)
ENTRY = RegistryEntry(tenant=ACCOUNT.public, role="agent", origin="agent_inferred", classification="restricted", verbs=["write"])
TAGS = ("tenant:acme", "project:p1", "project:p2", "see:public", "see:internal")


def user_jwt(user: Keypair = USER, tags: tuple[str, ...] = TAGS, expires_at: int | None = None, name: str = "writer") -> str:
    return claims.user_jwt(user.public, name, ROLE_KEY, ACCOUNT.public, NOW, tags=tags, expires_at=expires_at)


def with_claims(jwt: str, **changed: object) -> str:
    """The same JWT and signature over other claims."""
    header, body, signature = jwt.split(".")
    content = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    forged = base64.urlsafe_b64encode(msgspec.json.encode({**content, **changed})).rstrip(b"=").decode()
    return f"{header}.{forged}.{signature}"


# --- keys
@pytest.mark.parametrize(("key", "letter"), [(OPERATOR, "O"), (ACCOUNT, "A"), (USER, "U")])
def test_a_key_has_the_letter_of_its_kind_and_is_read_back_from_its_seed(key: Keypair, letter: str) -> None:
    assert key.public.startswith(letter)
    assert Keypair(key.seed).public == key.public


def test_is_kind_looks_at_kind_and_checksum() -> None:
    assert is_kind(USER.public, "user")
    assert not is_kind(USER.public, "account")
    assert not is_kind(USER.public[:-1] + ("A" if USER.public[-1] != "A" else "B"), "user")


def test_a_wrong_seed_is_refused_and_never_shown() -> None:
    wrong = USER.seed[:-1] + ("A" if USER.seed[-1] != "A" else "B")
    with pytest.raises(ConfigError) as refused:
        Keypair(wrong)
    assert wrong not in str(refused.value)
    assert refused.value.__cause__ is None
    assert USER.seed not in repr(USER)


# --- JWT
def test_a_jwt_is_read_back_as_it_was_signed() -> None:
    read = verify_jwt(user_jwt(expires_at=NOW + 60))
    assert (read.issuer, read.subject, read.name) == (ROLE_KEY.public, USER.public, "writer")
    assert (read.issued_at, read.expires_at) == (NOW, NOW + 60)


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3), st.integers(0, 1 << 40))
def test_encode_and_verify_are_inverse(extra: dict[str, str], issued_at: int) -> None:
    read = verify_jwt(encode_jwt({"sub": "s", "name": "n", "nats": extra}, ACCOUNT, issued_at))
    assert (read.issuer, read.issued_at, msgspec.json.decode(read.nats)) == (ACCOUNT.public, issued_at, extra)


@pytest.mark.parametrize(
    "forged",
    [
        with_claims(user_jwt(), name="operator"),
        with_claims(user_jwt(), iss=ACCOUNT.public),
        user_jwt()[:-4] + "AAAA",
        user_jwt().rpartition(".")[0] + ".",
        "not.a.jwt",
        "",
        "eyJ0eXAiOiJKV1QiLCJhbGciOiJub25lIn0." + user_jwt().partition(".")[2],
    ],
)  # fmt: skip
def test_a_jwt_with_other_claims_signature_or_algorithm_is_refused(forged: str) -> None:
    with pytest.raises(ConfigError):
        verify_jwt(forged)


def test_the_jti_is_the_sha512_256_of_the_claims() -> None:
    body = user_jwt().split(".")[1]
    jti = msgspec.json.decode(base64.urlsafe_b64decode(body + "=="))["jti"]
    assert len(base64.b32decode(jti + "====")) == 32


# --- tags and names
def test_tags_are_grouped_by_name() -> None:
    assert parse_tags(TAGS) == {"tenant": ("acme",), "project": ("p1", "p2"), "see": ("public", "internal")}


@pytest.mark.parametrize(
    "tags",
    [
        ("project:*",),
        ("project:>",),
        ("project:a.b",),
        ("project:",),
        ("project",),
        ("project:P1",),
        ("project:" + "x" * 65,),
        ("role:operator",),
        ("project:p1", "project:p1"),
        ("user:ann", "user:bob"),
        ("ceiling:external", "ceiling:external"),
    ],
)
def test_an_unsafe_unknown_or_doubled_tag_is_refused(tags: tuple[str, ...]) -> None:
    with pytest.raises(Rejected) as refused:
        parse_tags(tags)
    assert refused.value.reason == "tag_invalid"
    with pytest.raises(Rejected):
        user_jwt(tags=tags)


@pytest.mark.parametrize("name", ["", "*", "a.b", "Ann", "x" * 65, "a b", "naïve"])
def test_a_user_name_that_is_unsafe_in_a_subject_is_refused(name: str) -> None:
    assert verify_jwt(user_jwt(name="x" * 64)).name == "x" * 64
    with pytest.raises(Rejected):
        user_jwt(name=name)


# --- credentials
def test_credentials_are_read_back() -> None:
    read = parse_creds(creds_text(user_jwt(expires_at=NOW + 60), USER))
    assert (read.key, read.seed, read.jwt) == (USER.public, USER.seed, user_jwt(expires_at=NOW + 60))
    assert (read.tenant, read.name, read.projects) == ("acme", "writer", ("p1", "p2"))
    assert (read.classifications, read.tags, read.expires_at) == (("public", "internal"), TAGS, NOW + 60.0)
    assert read.seed not in repr(read)


def test_credentials_without_an_end_have_none() -> None:
    assert parse_creds(creds_text(user_jwt(), USER)).expires_at is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        creds_text(user_jwt(), keypair("user")),
        creds_text(user_jwt(), USER).replace("USER NKEY SEED", "SOMETHING"),
        creds_text(with_claims(user_jwt(), name="operator"), USER),
        creds_text(OPERATOR_JWT, OPERATOR),
        creds_text(encode_jwt({"sub": USER.public, "name": "x", "nats": {"type": "account", "version": 2}}, USER, NOW), USER),
    ],
)
def test_damaged_or_foreign_credentials_are_refused_and_the_seed_is_never_shown(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_creds(text)
    assert USER.seed not in str(refused.value)


# --- registry
def test_a_registry_that_the_operator_signed_is_believed() -> None:
    jwt = registry_jwt({ROLE_KEY.public: ENTRY}, SIGNING, NOW)
    assert verify_registry(jwt, OPERATOR_JWT) == {ROLE_KEY.public: ENTRY}


def test_a_registry_that_another_signed_is_refused() -> None:
    for signer in (keypair("operator"), OPERATOR, ACCOUNT):
        with pytest.raises(ConfigError) as refused:
            verify_registry(registry_jwt({ROLE_KEY.public: ENTRY}, signer, NOW), OPERATOR_JWT)
        assert refused.value.reason == "registry_untrusted"


def test_an_operator_that_did_not_sign_itself_is_refused() -> None:
    other = keypair("operator")
    nats = {"type": "operator", "version": 2, "signing_keys": [other.public]}
    forged = encode_jwt({"sub": OPERATOR.public, "name": "cordon", "nats": nats}, other, NOW)
    with pytest.raises(ConfigError) as refused:
        verify_registry(registry_jwt({}, other, NOW), forged)
    assert refused.value.reason == "operator_invalid"


def test_another_jwt_of_the_operator_is_no_registry() -> None:
    account = claims.account_jwt(ACCOUNT.public, "acme", SIGNING, NOW)
    with pytest.raises(ConfigError) as refused:
        verify_registry(account, OPERATOR_JWT)
    assert refused.value.reason == "jwt_invalid"


def test_a_registry_about_keys_that_are_not_accounts_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        verify_registry(registry_jwt({USER.public: ENTRY}, SIGNING, NOW), OPERATOR_JWT)
    assert refused.value.reason == "registry_invalid"


def test_importing_identity_loads_nothing_heavy() -> None:
    code = "import sys, bus.identity; print(sorted({'torch','duckdb','hnswlib','typer','numpy'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert shown.strip() == "[]"
