"""Reads a nats-server configuration file as nested values: enough of its format to examine what a server was started with.

Keys are lower case; a value is text, a list of texts, or a block. Variables and includes are not followed: `ConfigError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

from bus.errors import ConfigError

Value: TypeAlias = "str | list[Value] | dict[str, Value]"
Block: TypeAlias = dict[str, Value]

_TOKEN: Final = re.compile(
    r"""\s+|\#[^\n]*|//[^\n]*|,|;
    |(?P<string>"(?:[^"\\]|\\.)*"|'[^']*')
    |(?P<mark>[{}\[\]]|[:=](?=\s|[{\["']|\S))
    |(?P<word>[^\s{}\[\]=:,;"'#]+(?::[^\s{}\[\],;"'#]+)*)""",
    re.VERBOSE,
)


def read(path: Path) -> Block:
    """The file's settings. `ConfigError` if it can't be read."""
    try:
        return parse(path.read_text())
    except (OSError, ValueError) as e:
        raise ConfigError(
            f"{path} can't be read: {e}.", reason="server_config", advice="Run `cordon down` and `cordon up`: it is written anew."
        ) from None


def parse(text: str) -> Block:
    """The settings in `text`. `ValueError` if it is not understood."""
    tokens = [*_tokens(text), ("mark", "}")]
    block, end = _block(tokens, 0)
    if end != len(tokens):
        raise ValueError("a brace too many")
    return block


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"unexpected {text[at]!r}")
        at = match.end()
        if match.lastgroup == "string":
            yield "text", match[0][1:-1]
        elif match.lastgroup is not None:
            yield ("text" if match.lastgroup == "word" else "mark"), match[0]


def _block(tokens: list[tuple[str, str]], at: int) -> tuple[Block, int]:
    found: Block = {}
    while at < len(tokens):
        kind, name = tokens[at]
        if (kind, name) == ("mark", "}"):
            return found, at + 1
        if kind != "text" or name in ("include",) or name.startswith("$"):
            raise ValueError(f"{name!r} is not a setting that is followed")
        at += 1
        if tokens[at] in (("mark", ":"), ("mark", "=")):
            at += 1
        found[name.lower()], at = _value(tokens, at)
    raise ValueError("a brace is not closed")


def _value(tokens: list[tuple[str, str]], at: int) -> tuple[Value, int]:
    kind, text = tokens[at]
    if kind == "text":
        return text, at + 1
    if text == "{":
        return _block(tokens, at + 1)
    if text != "[":
        raise ValueError(f"unexpected {text!r}")
    items: list[Value] = []
    at += 1
    while tokens[at] != ("mark", "]"):
        item, at = _value(tokens, at)
        items.append(item)
        if at >= len(tokens):
            raise ValueError("a bracket is not closed")
    return items, at + 1
