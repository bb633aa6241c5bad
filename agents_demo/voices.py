"""How the scripted agents put things: each in a voice of its own, so no two say the same alike. Pure.

Names and numbers stay, as a language model would keep them; order, phrases and opening change. The random choice of an opening
is the caller's, so one seed gives one wording.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import Final

from .scenario import Voice


@dataclass(frozen=True, slots=True)
class Style:
    """`turned`: how two clauses are joined, in the new order; the first of them may be all there is."""

    openings: tuple[str, ...]
    openings_zh: tuple[str, ...]
    joined: str
    closing: str
    words: tuple[tuple[str, str], ...]


STYLES: Final[dict[Voice, Style]] = {
    "brief": Style(
        ("In short: ", "The gist is this: ", "Summed up: "),
        ("简言之：", "概括地说："),
        "{rest}; {first}",
        ".",
        (
            ("are paid to", "go to"),
            ("is paid to", "goes to"),
            ("rolls back to version", "returns to release"),
            ("takes", "needs"),
            ("changed its bank", "has a new bank"),
            ("older than", "beyond"),
            ("is shared with", "is opened to"),
            ("改为", "变更为"),
            ("收款", "付款"),
        ),
    ),
    "report": Style(
        ("What we know is that ", "As far as we can tell, ", "From the notes: "),
        ("据了解，", "根据记录，"),
        "{first} ({rest})",
        ".",
        (
            ("from now on", "as of today"),
            ("bounce", "come back"),
            ("may be deleted", "can go"),
            ("misbehaves", "causes trouble"),
            ("is opened to", "is made available to"),
            ("凌晨", "清晨"),
        ),
    ),
    "code": Style(
        ("# why: ", "# source says: ", "# note: "),
        ("# 说明：", "# 依据："),
        "{first} -- {rest}",
        "",
        (("version", "tag"), ("account", "acct"), ("invoices", "bills"), ("snapshots", "snaps"), ("账号", "帐号")),
    ),
    "verdict": Style(
        ("Checked, no objection: ", "Looks right to me: ", "Approved as it stands: "),
        ("已核对，无异议：", "审核通过："),
        "{rest}, and {first}",
        ".",
        (("changed", "switched"), ("closed", "shut"), ("needs", "requires"), ("because", "since"), ("公告", "通知")),
    ),
    "log": Style(
        ("Done: ", "Carried out: ", "Executed: "),
        ("已执行：", "已完成："),
        "{first} [{rest}]",
        ".",
        (("invoices", "payments"), ("must be", "has to be"), ("每天", "每日")),
    ),
}
_OPENINGS: Final = re.compile(
    "|".join(re.escape(o) for style in STYLES.values() for o in (*style.openings, *style.openings_zh)), re.IGNORECASE
)
_CHINESE: Final = re.compile("[\u4e00-\u9fff]")
_STOPS: Final = ".。 "


def restated(texts: list[str], voice: Voice, random: Random) -> str:
    """One text made of several, in the words of `voice`."""
    style = STYLES[voice]
    opening = random.choice(style.openings_zh if _CHINESE.search("".join(texts)) else style.openings)
    clauses = [_clause(text, style) for text in texts]
    return f"{opening}{'. '.join(clauses)}{style.closing}"


def _clause(text: str, style: Style) -> str:
    """One text turned round at its first comma."""
    bare = _OPENINGS.sub("", text).strip(_STOPS)
    comma = "，" if "，" in bare else ", "
    first, found, rest = bare.partition(comma)
    turned = style.joined.format(first=first, rest=rest) if found else first
    for old, new in style.words:
        turned = turned.replace(old, new)
    return turned
