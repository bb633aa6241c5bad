"""The one way out for text that an agent wrote, into a terminal, CSV, DOT, Markdown or HTML.

Invariant: what `render_untrusted` returns can't move a cursor, colour a line, start a new one, hide or reorder what is read, run
as a formula, open a tag or close the quotes around it. Pure; no I/O.
"""

from __future__ import annotations

import html
import re
import unicodedata
from typing import Final, Literal

Form = Literal["terminal", "block", "cell", "dot", "markdown", "html"]

LIMIT_CHARS: Final = 500
_GUTTER: Final = "│ "
# Cc: C0 and C1 controls, so no escape sequence survives. Cf: bidi overrides, zero-width, tags. Zl, Zp: line separators.
# Cs: what no encoding can print. Co: what a font may draw as anything.
_UNSAFE_CATEGORIES: Final = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs", "Co"})
# Letters and marks that are drawn as nothing: fillers, joiners, variation selectors (U+FE0F, emoji style, is left alone).
_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0e\uffa0\U000e0100-\U000e01ef]"
)
_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_FORMULA: Final = (
    "=",
    "+",
    "-",
    "@",
    "\uff1d",
    "\uff0b",
    "\uff0d",
    "\uff20",
)  # the last four: full width; spreadsheets fold them
_PUNCTUATION: Final = re.compile(r"([!-/:-@\[-`{-~])")


def render_untrusted(text: str, limit: int = LIMIT_CHARS, form: Form = "terminal") -> str:
    """`text` made harmless, cut to `limit` characters (and then '…').

    form: `terminal`, one line; `block`, several lines behind a gutter, so that none can pass for ours (both keep brackets: our
    consoles read no markup, see output.py); `cell`, a value for csv.writer; `dot`, a quoted DOT string; `markdown`, inline text;
    `html`, text or a quoted attribute.
    """
    cut = text if len(text) <= limit else text[:limit] + "…"
    if form == "block":
        return "\n".join(_GUTTER + _visible(line) for line in cut.replace("\r\n", "\n").split("\n"))
    line = _visible(cut)
    if form == "cell":
        return "'" + line if line.lstrip(" ").startswith(_FORMULA) else line
    if form == "dot":
        # Graphviz decodes entities inside quotes, too.
        return '"' + line.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") + '"'
    if form == "markdown":
        return _PUNCTUATION.sub(r"\\\1", line).replace("\\<", "&lt;").replace("\\>", "&gt;").replace("\\&", "&amp;")
    return html.escape(line, quote=True) if form == "html" else line


def _visible(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if _is_unsafe(c) else c for c in text)


def _is_unsafe(char: str) -> bool:
    return unicodedata.category(char) in _UNSAFE_CATEGORIES or _INVISIBLE.match(char) is not None


def _escape(char: str) -> str:
    code = ord(char)
    if char in _NAMED:
        return _NAMED[char]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
