"""What a secret looks like: one table, data only. `redact` applies it.

Each rule has a type (it names the cut in receipts), literals of which at least one must occur (in lower case) before the
pattern is tried, and a pattern whose group is what is cut. Invariant: each pattern is linear. Runs are possessive and guarded in
front by the class they consume, or bounded, so no text makes one start rescan what another has read.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class SecretRule(NamedTuple):
    type: str
    literals: tuple[str, ...]
    pattern: re.Pattern[str]


def _prefixed(type_: str, prefixes: str, body: str) -> SecretRule:
    """A vendor's token: one of `prefixes` (split by spaces), not in the middle of a word, then `body`."""
    literals = tuple(prefixes.split())
    alternatives = "|".join(re.escape(p) for p in literals)
    return SecretRule(type_, tuple(p.lower() for p in literals), re.compile(rf"(?<![A-Za-z0-9])((?:{alternatives}){body})"))


def _rule(type_: str, literals: str, pattern: str, flags: int = 0) -> SecretRule:
    return SecretRule(type_, tuple(literals.split()), re.compile(pattern, flags))


_W: Final = "[A-Za-z0-9_-]"
_END: Final = r"(?![A-Za-z0-9])"
_I: Final = re.IGNORECASE

LONG_RUN: Final = re.compile(r"[A-Za-z0-9_+/=.~-]{16}|PRIVATE")  # is in whatever a rule of VENDOR matches
VENDOR: Final = (
    _prefixed("aws_key", "AKIA ASIA ABIA ACCA", rf"[A-Z0-9]{{16}}{_END}"),
    _prefixed("aws_bedrock_key", "ABSK bedrock-api-key-", r"[A-Za-z0-9+/]{60,}+={0,2}"),
    _prefixed("github_token", "ghp_ gho_ ghu_ ghs_ ghr_", r"[A-Za-z0-9]{36,}+"),
    _prefixed("github_token", "github_pat_", r"[A-Za-z0-9_]{50,}+"),
    _prefixed(
        "gitlab_token", "glpat- gldt- glrt- glptt- glcbt- glsoat- glft- glimt- glagent- gloas- glffct- GR1348941",
        rf"{_W}{{20,}}+(?:\.{_W}{{5,}}+){{0,2}}"),
    _prefixed("slack_token", "xoxb- xoxp- xoxa- xoxr- xoxs- xoxo- xoxe- xoxe.xoxp- xoxe.xoxb- xapp-", r"[A-Za-z0-9-]{20,}+"),
    _rule("slack_webhook", "hooks.slack.com", r"(hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/_+-]{20,}+)"),
    _prefixed("stripe_key", "sk_live_ sk_test_ rk_live_ rk_test_ sk_prod_ rk_prod_ whsec_", r"[A-Za-z0-9]{16,}+"),
    _prefixed("google_key", "AIza", rf"{_W}{{35}}(?!{_W})"),
    _prefixed("google_secret", "GOCSPX- ya29.", rf"{_W}{{20,}}+"),
    _prefixed("anthropic_key", "sk-ant-", rf"{_W}{{32,}}+"),
    _prefixed("openai_key", "sk-", rf"(?=[A-Za-z-]{{0,64}}[0-9]){_W}{{32,}}+"),
    _prefixed("npm_token", "npm_", rf"[A-Za-z0-9]{{36}}{_END}"),
    _prefixed("pypi_token", "pypi-AgE", rf"{_W}{{50,}}+"),
    _prefixed("sendgrid_key", "SG.", rf"{_W}{{16,32}}+\.{_W}{{30,}}+"),
    _prefixed("twilio_key", "SK", rf"[0-9a-f]{{32}}{_END}"),
    _prefixed("huggingface_token", "hf_ api_org_", rf"[A-Za-z]{{34}}{_END}"),
    _prefixed("azure_secret", "", rf"[A-Za-z0-9_.~]{{3}}[0-9]Q~[A-Za-z0-9_.~-]{{31,34}}{_END}")._replace(literals=("q~",)),
    _prefixed("digitalocean_token", "dop_v1_ doo_v1_ dor_v1_", r"[0-9a-f]{64}"),
    _prefixed("shopify_token", "shpat_ shpca_ shppa_ shpss_", r"[0-9a-fA-F]{32}"),
    _prefixed("vault_token", "hvs. hvb. hvr.", rf"{_W}{{24,}}+"),
    _prefixed("vault_token", "s.", rf"(?=[A-Za-z]{{0,23}}[0-9])[A-Za-z0-9]{{24}}{_END}"),
    _prefixed("notion_token", "ntn_", rf"[0-9]{{11}}[A-Za-z0-9]{{35}}{_END}"),
    _prefixed("sourcegraph_token", "sgp_", r"(?:local_|[A-Fa-f0-9]{16}_)?[A-Fa-f0-9]{40}"),
    _prefixed("facebook_token", "EAAM EAAC EAAB", rf"[A-Za-z0-9]{{60,}}+{_END}"),
    _prefixed("linear_key", "lin_api_", r"[A-Za-z0-9]{40}"),
    _prefixed("doppler_token", "dp.pt. dp.st. dp.ct. dp.sa.", r"[A-Za-z0-9]{40,}+"),
    _prefixed("databricks_token", "dapi", rf"[0-9a-f]{{32}}(?:-[0-9])?{_END}"),
    _prefixed("grafana_token", "glc_ glsa_", r"[A-Za-z0-9+/_=]{32,}+"),
    _prefixed("figma_token", "figd_", rf"{_W}{{32,}}+"),
    _prefixed("groq_key", "gsk_", r"[A-Za-z0-9]{40,}+"),
    _prefixed("perplexity_key", "pplx-", r"[A-Za-z0-9]{40,}+"),
    _prefixed("replicate_token", "r8_", r"[A-Za-z0-9]{36,}+"),
    _prefixed("xai_key", "xai-", r"[A-Za-z0-9]{60,}+"),
    _prefixed("sentry_token", "sntrys_ sntryu_", r"[A-Za-z0-9_=+/]{48,}+"),
    _prefixed("onepassword_token", "ops_eyJ", r"[A-Za-z0-9+/]{80,}+={0,3}"),
    _prefixed("pulumi_token", "pul-", r"[0-9a-f]{40}"),
    _prefixed("postman_key", "PMAK-", r"[0-9a-f]{24}-[0-9a-f]{34}"),
    _prefixed("octopus_key", "API-", rf"[A-Z0-9]{{26}}{_END}"),
    _prefixed("jfrog_token", "AKCp cmVmdGtu", r"[A-Za-z0-9]{50,}+"),
    _prefixed("openshift_token", "sha256~", rf"{_W}{{43}}(?!{_W})"),
    _prefixed("intra42_secret", "s-s4t2ud- s-s4t2af-", r"[0-9a-f]{64}"),
    _rule("telegram_token", ":aa", rf"(?<![A-Za-z0-9])([0-9]{{8,10}}:AA{_W}{{33}})(?!{_W})"),
    _rule("teams_webhook", "webhook.office.com", r"(webhook\.office\.com/webhookb2/[A-Za-z0-9@/-]{60,}+)"),
    _rule("nats_seed", "su sa so sn sc sx", rf"(?<![A-Za-z0-9])(S[UAOCNX][A-Z2-7]{{56}}){_END}"),
    _prefixed("age_key", "AGE-SECRET-KEY-1", r"[A-Z0-9]{50,}+"),
    _rule("jwt", "eyj", rf"(?<!{_W})(eyJ{_W}{{10,}}+\.{_W}{{10,}}+(?:\.{_W}*+)?)"),
    _rule(
        "private_key", "private", r"(-----BEGIN[A-Z0-9 ]{0,40} ?PRIVATE KEY(?: BLOCK)?-----"
        r"(?:(?:[^-]|-(?!----))*+-----END[A-Z0-9 ]{0,60}-----|(?:[\s\\nr\"',+]*+[A-Za-z0-9+/=]{20,}+)*+))"),
)  # fmt: skip

_GAP: Final = r"[ \t]{0,8}+"
_IS: Final = rf"[\"'`\])]{{0,3}}{_GAP}(?:=>|:=|->|={{1,3}}|:){_GAP}[\"'`(]{{0,3}}"  # an assignment: = : := =>
_VERB: Final = r"(?:is|was|are|remains?|equals?|as|to|of)"
_BE: Final = rf"(?:{_IS}|{_GAP}{_VERB}(?:{_GAP}(?:now|still|currently|set to|changed to))?{_GAP}[:\"'`(]{{0,2}}{_GAP})"
_NO_UNIT: Final = r"(?![0-9:/%]|[.,-][0-9])"  # 5:30, 40%, 2.16 and 5-3 are no codes
_VALUE: Final = r"[^\s\"'`<>(){}\[\],;]"  # what a secret's characters may be; brackets and quotes end it

CONTEXT: Final = (
    # Authorization: Basic …, Authorization: Bearer …, a lone bearer token of some length
    _rule(
        "authorization", "authorization",
        r"authorization[\"']?[ \t]{0,4}[:=][ \t]{0,4}[\"']?(?:[A-Za-z][A-Za-z-]{2,15}[ \t]{1,4})?"
        r"([A-Za-z0-9+/=_.~@!$%^&*:-]{8,}+)", _I),
    _rule("authorization", "bearer", r"\bbearer[ \t]{1,4}([A-Za-z0-9+/=_.~-]{16,}+)", _I),
    _rule("url_password", "://", r"://[^\s/:@?#]{0,128}+:([^\s/?#]{1,256})@"),
    _rule("basic_credentials", "curl",
        r"(?:\s-u|--user)[ =\t\\\n]{0,8}[\"']?([^\s\"':<>\[\]]{0,64}+[\"']?:[\"']?[^\s\"'<>\[\]]{3,128}+)"),
    # name = value, "name": "value", --name value: any name that ends in one of these words
    _rule(
        "password", "passw pwd passphrase passcode",
        rf"(?:password|passwd|pwd|passphrase|passcode)(?:_?[0-9]{{1,2}}|s)?{_BE}({_VALUE}{{4,256}}+)", _I),
    _rule(
        "secret", "secret token key credential",
        r"(?:client[_ -]?(?:secret|srt)|secret(?:[_ -]?(?:access[_ -]?)?key)?|token|credentials?"
        r"|(?:api|access|private|signing|encryption|auth)[_ -]?key)"
        rf"(?:[_-]?(?:value|string|[0-9]{{1,2}}))?{_BE}({_VALUE}{{8,512}}+)", _I),
    # said in words: the PIN is 4821, PIN 4821, gate code 5041, one-time code: 113 908
    _rule(
        "pin", "pin cvv cvc",
        rf"\b(?:pin|cvv2?|cvc)(?:[ -](?:code|number))?(?:{_BE}|[ \t]{{1,4}})([0-9]{{3,8}}){_NO_UNIT}", _I),
    _rule(
        "access_code", "code combination",
        r"\b(?:door|gate|garage|vestibule|keypad|lock|locker|lockbox|safe|alarm|unlock|entry|access|check-?in|wi-?fi"
        r"|security|verification|one[- ]time|2fa|otp|backup|recovery|upload|login|auth)"
        rf"[ -](?:code|combination)(?:{_BE}|[ \t]{{1,4}})((?=[A-Za-z_-]{{0,32}}[0-9])[A-Za-z0-9_-]{{4,40}}+)", _I),
    _rule(
        "access_code", "code",
        r"(?<!error )(?<!status )(?<!exit )(?<!return )(?<!response )(?<!http )(?<!zip )(?<!area )(?<!postal )(?<!country )"
        rf"\bcode{_BE}([0-9]{{4,8}}){_NO_UNIT}", _I),
)  # fmt: skip

NUMBERS: Final = (
    _rule(
        "payment_card", "3 4 5 6 2", r"(?<![\w.-])((?:3[0-9]|4[0-9]|5[1-5]|6[0-9]|2[2-7])[0-9](?:[ -]?[0-9]){10,16}+)(?![\w-])"
    ),
    _rule(
        "iban",
        "0 1 2 3 4 5 6 7 8 9",
        r"(?<![A-Za-z0-9])([A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?)(?![A-Za-z0-9])",
    ),
)
