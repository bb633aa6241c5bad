"""Scenarios: the packaged ones are good, and what is wrong in a file is told with its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agents_demo.scenario import DEFAULT, FILE_BYTES_MAX, ScenarioError, load, names, parse

DOCS = Path(__file__).parents[2] / "docs" / "demo.md"
GOOD = re.findall(r"^```toml\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)[0]


def refused(source: str | bytes) -> ScenarioError:
    with pytest.raises(ScenarioError) as caught:
        parse(source.encode() if isinstance(source, str) else source, "mine.toml")
    assert caught.value.advice
    assert "mine.toml" in caught.value.message
    return caught.value


@pytest.mark.parametrize("name", names())
def test_a_packaged_scenario_is_good(name: str) -> None:
    assert load(name).poisoned


def test_the_default_is_packaged_and_the_one_in_the_docs_is_good() -> None:
    assert DEFAULT in names()
    bakery = parse(GOOD.encode(), "docs")
    assert [d.uri for d in bakery.poisoned] == ["mail:77"]
    assert bakery.benign().poisoned == []
    assert bakery.topics == [
        ("shop", "what is new with the account of the miller Oakham?"),
        ("shop", "which account is the miller Oakham paid to?"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("format = 1", "format = 2", "format"),
        ("format = 1", "format = 1\ncolour = 'red'", "colour"),
        ('title = "A bakery', 'titel = "A bakery', "titel"),
        ('poison = "fact"', 'poison = "rumour"', "documents[1].poison"),
        ('poison = "fact"', "", "none has a poison"),
        ('name = "buyer"', 'name = "Buyer!"', "agents[2].name"),
        ('name = "buyer"', 'name = "reader"', "reader is there 2 times"),
        ('name = "buyer"', 'name = "operator"', "agents: the name operator is taken"),
        ('agent = "till"', 'agent = "teller"', "steps[3].agent: teller"),
        ('agent = "till"', 'agent = "buyer"', "steps[3].agent: buyer has no tool pay"),
        ('task = "flour"', 'task = "flower"', "steps[3].task: flower"),
        ('task = "flour"', "", "steps[3].task: nothing"),
        ('do = "read"', 'do = "record"', "steps[1]: reader can't record"),
        ('do = "read"', 'do = "read"\nabout = "what?"', "steps[1].about: to read takes no about"),
        ('project = "shop"\nabout', 'project = "shed"\nabout', "tasks[0].project: shed"),
        ('tool = "ledger"', 'tool = "lodger"', "records[0].tool: lodger"),
        (r"'\d{4}-\d{4}'", "'('", "tasks[0].value: it is no regular expression"),
        ('answer = "Kessel"', 'answer = ""', "questions[0].answer"),
        ('uri = "mail:77"', 'uri = "https://example.org/flour"', "documents: https://example.org/flour is there 2 times"),
        ('text = "The miller', 'text = " \\n "\n#', "documents[1].text"),
        ("[[records]]", "[[records]", "line"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_place(old: str, new: str, told: str) -> None:
    assert old in GOOD
    error = refused(GOOD.replace(old, new, 1))
    assert error.reason == "scenario_invalid"
    assert told in error.message


def test_a_large_file_a_missing_one_and_one_that_is_no_text_are_refused(tmp_path: Path) -> None:
    assert refused(b"#" * (FILE_BYTES_MAX + 1)).reason == "scenario_too_large"
    assert "not UTF-8" in refused(b"title = '\xff'").message
    for name in (str(tmp_path / "none.toml"), str(tmp_path), "a\0b"):
        with pytest.raises(ScenarioError, match="can't be read") as caught:
            load(name)
        assert "office" in caught.value.advice


def test_a_file_is_read_like_a_packaged_one(tmp_path: Path) -> None:
    (tmp_path / "bakery.toml").write_text(GOOD)
    assert load(str(tmp_path / "bakery.toml")) == parse(GOOD.encode(), "docs")
