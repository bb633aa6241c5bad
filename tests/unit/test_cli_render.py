"""`render_untrusted`: nothing that an agent wrote drives a terminal, a spreadsheet, a graph or a page."""

from __future__ import annotations

import ast
import html
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cli
from cli.output import show
from cli.render import LIMIT_CHARS, render_untrusted

CLI = Path(cli.__path__[0])
# What others wrote, by the name of the frame's field. `str(receipt)` and ids are the gatekeeper's own words.
UNTRUSTED = {"content", "evidence", "why", "person", "sentences", "by", "released_by"}
ANY_TEXT = st.text(st.characters(codec=None))


def is_harmless(char: str) -> bool:
    return unicodedata.category(char) not in {"Cc", "Cf", "Zl", "Zp", "Cs", "Co"}


@given(ANY_TEXT)
def test_a_line_holds_no_control_format_or_separator_character(text: str) -> None:
    assert all(map(is_harmless, render_untrusted(text)))


@given(ANY_TEXT)
def test_every_line_of_a_block_is_harmless_and_stands_behind_the_gutter(text: str) -> None:
    lines = render_untrusted(text, form="block").split("\n")
    assert all(line.startswith("│ ") and all(map(is_harmless, line)) for line in lines)


@given(
    st.text(
        st.characters(categories=["L", "N", "P", "S", "Zs"], exclude_characters="\u115f\u1160\u3164\uffa0\u2800"),
        max_size=LIMIT_CHARS,
    )
)
def test_ordinary_text_is_left_as_it_is(text: str) -> None:
    assert render_untrusted(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b2J", "\\x9b2J"),
        ("a\u202eb", "a\\u202eb"),
        ("a\u200bb", "a\\u200bb"),
        ("a\u2028b", "a\\u2028b"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("a\U000e0041", "a\\U000e0041"),
        ("a\u3164", "a\\u3164"),
        ("a\ud800", "a\\ud800"),
        ("共享记忆 naïve 🙂\ufe0f", "共享记忆 naïve 🙂\ufe0f"),
    ],
)
def test_what_can_deceive_is_made_visible_and_the_rest_is_kept(text: str, shown: str) -> None:
    assert render_untrusted(text) == shown


def test_long_text_is_cut_and_says_so() -> None:
    assert render_untrusted("x" * 11, limit=10) == "x" * 10 + "…"
    assert render_untrusted("x" * 10, limit=10) == "x" * 10


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "  =", "\uff1d"])
def test_a_cell_never_begins_a_formula(start: str) -> None:
    assert render_untrusted(f"{start}1+1", form="cell") == f"'{start}1+1"
    assert render_untrusted(f"x{start}1", form="cell") == f"x{start}1"


@given(ANY_TEXT)
def test_a_dot_string_can_not_be_closed_from_inside(text: str) -> None:
    quoted = render_untrusted(text, form="dot")
    inside = quoted[1:-1].replace("\\\\", "").replace('\\"', "")
    assert quoted[0] == quoted[-1] == '"'
    assert '"' not in inside
    assert not inside.endswith("\\")


@given(ANY_TEXT)
def test_html_opens_no_tag_and_closes_no_attribute(text: str) -> None:
    shown = render_untrusted(text, form="html")
    assert not set("<>\"'") & set(shown)
    assert html.unescape(shown) == render_untrusted(text)


def test_markdown_is_plain_text() -> None:
    assert render_untrusted("[x](http://e) <b> `c` # *y*", form="markdown") == (
        "\\[x\\]\\(http\\:\\/\\/e\\) &lt;b&gt; \\`c\\` \\# \\*y\\*"
    )


def test_brackets_reach_the_screen_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    text = "[bold red]x[/bold red] [link=http://evil]y[/link] :smile:"
    show(render_untrusted(text))
    assert capsys.readouterr().out == text + "\n"


def test_no_command_prints_what_others_wrote_by_another_way() -> None:
    """Each read of an untrusted field stands inside a call of `render_untrusted`."""
    free = []
    for path in sorted(CLI.glob("*.py")):
        tree = ast.parse(path.read_text())
        inside = {
            id(node)
            for call in ast.walk(tree)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "render_untrusted"
            for node in ast.walk(call)
        }
        free += [
            f"{path.name}:{node.lineno} .{node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and node.attr in UNTRUSTED
            and id(node) not in inside
            and not prints_nothing(node, tree)
        ]
    assert free == []


def prints_nothing(read: ast.Attribute, tree: ast.AST) -> bool:
    """`for x in a.field`, `a.field is None` and a method of that name print nothing; what a loop makes of `x` is looked at."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.func is read:
            return True
        if isinstance(node, ast.For) and node.iter is read:
            return renders(node.body, node.target)
        if isinstance(node, (ast.GeneratorExp, ast.ListComp)) and node.generators[0].iter is read:
            return renders([node.elt], node.generators[0].target)
        if isinstance(node, ast.Compare) and node.left is read and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            return True
    return False


def renders(body: list[ast.stmt] | list[ast.expr], target: ast.expr) -> bool:
    """Whether each use of the loop's variable is an argument of `render_untrusted`."""
    assert isinstance(target, ast.Name)
    uses = [n for part in body for n in ast.walk(part) if isinstance(n, ast.Name) and n.id == target.id]
    rendered = {
        id(n)
        for part in body
        for call in ast.walk(part)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "render_untrusted"
        for n in ast.walk(call)
    }
    return bool(uses) and all(id(n) in rendered for n in uses)
