"""Secrets are cut before anything else sees the text; what only looks like one stays."""

import random
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.model.datasets import DataMissing, json_lines
from gate.writing.fold import fold
from gate.writing.redact import redact

_RANDOM = random.Random(7)


def _run(alphabet: str, n: int) -> str:
    return "".join(_RANDOM.choice(alphabet) for _ in range(n))


_AN = string.ascii_letters + string.digits
_HEX = "0123456789abcdef"
_B32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_PEM = "\n".join(
    ["-----BEGIN RSA PRIVATE " + "KEY-----", *(_run(_AN + "+/", 64) for _ in range(25)), "-----END RSA PRIVATE " + "KEY-----"]
)

# made here at random, so that no scanner takes this file for a leak
VENDOR_SECRETS = {
    "aws_key": "AKIA" + _run(_B32, 16),
    "github_token": "ghp_" + _run(_AN, 36),
    "gitlab_token": "glpat-" + _run(_AN, 20),
    "slack_token": f"xoxb-{_run('123456789', 12)}-{_run('123456789', 12)}-{_run(_AN, 24)}",
    "slack_webhook": "hooks.slack.com/services/T" + _run(_AN, 8) + "/B" + _run(_AN, 8) + "/" + _run(_AN, 24),
    "stripe_key": "sk_live_" + _run(_AN, 24),
    "google_key": "AIza" + _run(_AN + "-_", 35),
    "openai_key": "sk-proj-4" + _run(_AN, 48),
    "anthropic_key": "sk-ant-api03-" + _run(_AN + "-_", 93) + "AA",
    "npm_token": "npm_" + _run(_AN, 36),
    "pypi_token": "pypi-AgE" + _run(_AN, 90),
    "sendgrid_key": "SG." + _run(_AN, 22) + "." + _run(_AN, 43),
    "twilio_key": "SK" + _run(_HEX, 32),
    "jwt": "eyJ" + _run(_AN, 33) + ".eyJ" + _run(_AN, 60) + "." + _run(_AN + "-_", 43),
    "nats_seed": "SU" + _run(_B32, 56),
    "private_key": _PEM,
}
CONTEXT_SECRETS = [
    ("password", "remember: db password is {}", "hunter2"),
    ("password", "remember: db password is {}", "swordfish"),
    ("password", "DB_PASSWORD={}", "tr0ub4dor&3"),
    ("password", 'login with "password": "{}" on staging', "S3cure!pw"),
    ("secret", "export SERVICE_TOKEN={}", "a81bc81b9f3e"),
    ("secret", "the api key is {} for the weather service", "9f86d081884c7d65"),
    ("secret", "aws_secret_access_key = {}", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzz71KEY"),
    ("authorization", "curl -H 'Authorization: Basic {}'", "dXNlcjpodW50ZXIy"),
    ("authorization", "Authorization: Bearer {}", "mF_9.B5f-4.1JqM"),
    ("url_password", "postgres://app:{}@db.internal:5432/main", "s3cr3t-pg"),
    ("basic_credentials", "curl -u {} https://example.com", "elastic:p4sswd99"),
    ("pin", "Mia's current entry PIN is {}", "2864"),
    ("pin", "the guest pin: {}", "90210"),
    ("access_code", "Recording a gate code of {} for Sofia", "4408"),
    ("access_code", "the code is {}", "713908"),
    ("payment_card", "charge card {} for the flight", "4111 1111 1111 1111"),
    ("iban", "pay into {} by Friday", "GB82 WEST 1234 5698 7654 32"),
]
BENIGN = [
    "The token bucket algorithm refills 100 tokens a second; a token is 1 request.",
    "Commit 9fceb02d0ae598e95dc970b74767f19372d61af8 broke the build.",
    "Trace 550e8400-e29b-41d4-a716-446655440000 shows the retry.",
    "The password is required and must be changed every 90 days.",
    "Reset your password: see the runbook, section 4.",
    "password: ${DB_PASSWORD}",
    "Authorization: Bearer <token>",
    "The request failed with status code: 5031 and error code 4041.",
    "Pin 12 of the connector is ground; pin the dependency to 2.16.0.",
    "The secret to good onions is patience.",
    "Order 1234567890123456 left on 2026-11-30 at 17:45.",
    "Written at 1700000000000, expires at 1700000000000000000.",
    "The key is under the mat; the code is in gate/model.",
    "https://example.com:8080/path?email=a@b.c",
    "Use the sk-learn package and ask-anthropic in the channel.",
    "sha256:677c950c42f453cb6d8ba29ad2f6afd7b366b230b0dffe37a663bf1b5b744ed5",
    "El código de conducta está aquí; 密码策略每 90 天更换一次。",
]


@pytest.mark.parametrize("type_", VENDOR_SECRETS)
def test_a_vendor_secret_is_cut_and_named(type_: str) -> None:
    secret = VENDOR_SECRETS[type_]
    redacted = redact(f"Before, {secret} and after.")
    assert redacted.text == f"Before, [redacted:{type_}] and after."
    assert [s.type for s in redacted.spans] == [type_]


@pytest.mark.parametrize(("type_", "sentence", "secret"), CONTEXT_SECRETS)
def test_a_secret_that_its_context_gives_away_is_cut(type_: str, sentence: str, secret: str) -> None:
    redacted = redact(sentence.format(secret))
    assert redacted.text == sentence.format(f"[redacted:{type_}]")


@pytest.mark.parametrize("text", BENIGN)
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert redact(text) == (text, ())


def test_spans_are_places_in_the_stored_text() -> None:
    redacted = redact(f"one {VENDOR_SECRETS['github_token']} two PIN 4821 three {VENDOR_SECRETS['jwt']}")
    marks = [redacted.text[s.start : s.end] for s in redacted.spans]
    assert marks == ["[redacted:github_token]", "[redacted:pin]", "[redacted:jwt]"]


@pytest.mark.parametrize("disguise", ["\u200b", "\u00ad", "\u2060", "\ufe0f", "\U000e0041"])
def test_unseen_characters_do_not_hide_a_secret(disguise: str) -> None:
    secret = VENDOR_SECRETS["github_token"]
    redacted = redact(f"é {disguise.join(secret)} after")
    assert redacted.text == "é [redacted:github_token] after"


def test_look_alikes_do_not_hide_a_secret() -> None:
    full_width = "".join(chr(ord(c) + 0xFEE0) for c in VENDOR_SECRETS["aws_key"])
    assert redact(f"key {full_width}.").text == "key [redacted:aws_key]."
    assert redact("the рasswоrd is hunter2").text == "the рasswоrd is [redacted:password]"  # Cyrillic р and о


def test_a_private_key_without_its_end_is_cut_as_far_as_it_goes() -> None:
    begun = _PEM.partition("\n-----END")[0]
    assert redact(f"{begun}\nThat was the key.").text == "[redacted:private_key]\nThat was the key."


def test_a_private_key_with_escaped_line_ends_is_cut_whole() -> None:
    assert redact('{"key": "' + _PEM.replace("\n", "\\n") + '"}').text == '{"key": "[redacted:private_key]"}'


def test_a_number_with_a_wrong_check_digit_is_no_card_and_no_iban() -> None:
    for text in ("4111 1111 1111 1112", "GB82 WEST 1234 5698 7654 33"):
        assert redact(text).spans == ()


PARTS = [*VENDOR_SECRETS.values(), *(s.format(v) for _, s, v in CONTEXT_SECRETS), *BENIGN, "é", "\u200b"]


@given(st.lists(st.sampled_from(PARTS), max_size=6))
def test_redacting_twice_changes_nothing(parts: list[str]) -> None:
    once = redact(" ".join(parts))
    assert redact(once.text) == (once.text, ())
    assert not any(v in once.text for v in VENDOR_SECRETS.values())


@given(st.text(max_size=300))
def test_any_text_is_taken_and_what_is_not_marked_is_kept(text: str) -> None:
    redacted = redact(text)
    kept = redacted.text
    for span in reversed(redacted.spans):
        assert kept[span.start : span.end] == f"[redacted:{span.type}]"
        kept = kept[: span.start] + kept[span.end :]
    rest = iter(text)
    assert all(c in rest for c in kept)  # a subsequence


@given(st.text(max_size=50), st.text(min_size=1, max_size=20), st.text(max_size=50))
def test_a_span_of_the_copy_leads_back_to_the_characters_that_made_it(before: str, middle: str, after: str) -> None:
    folded = fold(before + middle + after)
    start, length = len(fold(before).text), len(fold(middle).text)
    if length:
        first, last = folded.original_span(start, start + length)
        assert len(before) <= first < last <= len(before + middle)


ADVERSARIAL = [
    "eyJ", "eyJ-", "AKIA", "-----BEGIN PRIVATE KEY-----\n", "password=", "password is ", "token: a", "://a:", "://", "4111 ",
    "4111", "sk-", "authorization: ", "bearer ", "code is ", "gate code ", "GB82 ", "curl -u a:", "p\u200b", "\u200b", "secret",
    " ", "token ", "\"'",
]  # fmt: skip


@pytest.mark.parametrize("unit", ADVERSARIAL)
def test_no_text_of_64_kib_takes_long(unit: str) -> None:
    text = ("curl private q~ :aa :// " + unit * 65_536)[:65_536]
    assert min(_seconds(text) for _ in range(3)) < 0.5  # of CPU: 0.03 s on a quiet core; quadratic time would be seconds


def _seconds(text: str) -> float:
    begun = time.process_time()
    redact(text)
    return time.process_time() - begun


def test_most_of_the_gitleaks_cases_are_found() -> None:
    try:
        cases = list(json_lines("gitleaks/rule_cases.jsonl"))
    except DataMissing as e:
        pytest.skip(str(e))
    secrets = [c["text"] for c in cases if c["label"] == "secret" and len(c["text"]) >= 16]  # shorter ones are rule names
    others = [c["text"] for c in cases if c["label"] == "not_secret"]
    assert sum(bool(redact(t).spans) for t in secrets) >= 82  # 86 of 115, and most of the rest are halves of templates
    assert sum(bool(redact(t).spans) for t in others) <= 55  # 47 of 353: well-formed keys on a list of known examples


def test_conversations_without_secrets_stay_as_they_are() -> None:
    try:
        files = ("cross_domain", "sycophancy", "beneficial_samples")
        memories = [m for name in files for case in json_lines(f"persistbench/{name}.jsonl") for m in case["memories"]]
    except DataMissing as e:
        pytest.skip(str(e))
    assert len(memories) > 2_000
    assert [m for m in memories if redact(m).spans] == []
