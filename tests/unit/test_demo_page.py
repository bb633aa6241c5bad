"""The demo's page: complete in itself, and no text of an agent is more than text in it."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

from agents_demo.page import render_page
from cli.render import render_untrusted
from tests.unit.demo_result import result

HOSTILE = '"><script>alert(1)</script><img src=x onerror="alert(2)"><style>*{display:none}</style></title></svg>\u202e&amp;\''


def safe(text: str) -> str:
    return render_untrusted(text, 2_000, "html")


class Tags(HTMLParser):
    """All start tags with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags(text: str) -> list[tuple[str, dict[str, str | None]]]:
    return Tags(render_page(result(text), safe)).found


def test_a_hostile_text_makes_no_tag_and_no_attribute() -> None:
    plain, hostile = tags("plain"), tags(HOSTILE)
    assert [(name, list(attributes)) for name, attributes in hostile] == [(name, list(attributes)) for name, attributes in plain]
    assert "\u202e" not in render_page(result(HOSTILE), safe)


def test_the_page_loads_nothing_and_runs_and_styles_only_what_its_policy_names() -> None:
    page = render_page(result("plain"), safe)
    found = tags("plain")
    assert not [
        a for _, attributes in found for a in attributes if a in ("src", "href", "style", "xlink:href") or a.startswith("on")
    ]
    assert not re.search(r"url\(|@import|https?://", re.sub(r"<main>.*</main>", "", page, flags=re.DOTALL))
    policy = next(a["content"] or "" for name, a in found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for name in ("style", "script"):
        [source] = re.findall(rf"<{name}>(.*?)</{name}>", page, re.DOTALL)
        assert f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'" in policy


def test_the_graph_has_a_dot_a_record_a_square_a_call_and_rings_what_is_held() -> None:
    page = render_page(result("plain"), safe)
    without, cordon = re.findall(r'<svg viewBox="0 0 \d{3,}.*?</svg>', page, re.DOTALL)
    for svg in (without, cordon):
        assert len(re.findall(r'<circle class="dot"', svg)) == 3
        assert len(re.findall(r'<rect class="dot"', svg)) == 1
    assert len(re.findall('class="ring"', cordon)) == 3
    assert 'class="node none"' in cordon
    assert 'class="node none"' not in without
    assert re.findall(r'class="marked".*?>(\w+)<', cordon) == ["hold", "release"]


def test_both_schemes_are_there_and_a_fault_of_the_closure_is_told() -> None:
    page = render_page(result("plain"), safe)
    assert "prefers-color-scheme: dark" in page
    assert "Where the closure was wrong" in page
