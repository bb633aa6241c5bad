"""The texts of contexts within a bound: what is let go is made again when its context writes, and finds the same copies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from gate.identify import Principal
from gate.index_state import NewMemory, TenantIndex
from gate.ledger.events import encode
from gate.model.embedder import StaticEmbedder
from gate.projections.catalog import Catalog, MemoryRow
from gate.projections.lexical import LexicalIndex, terms
from gate.projections.vectors import CATCH_UP_ROWS, DIM, ProjectVectors
from gate.steps import finished
from gate.writing.context_texts import ContextTexts
from gate.writing.lineage import Evidence, text_of

from .story import ACCOUNT, Story

EMBEDDER: Final = StaticEmbedder()
LATER_MS: Final = 10 * 3_600_000  # so that nearness in time says nothing
SECRET = "Halvorsen moved the account to Meridian under number 4471-9983 last spring"
FERRY = "The ferry to Grindavik sails from pier nineteen whenever the weather allows"


class Desk:
    """One tenant of a story with a real catalog, and a bound that one short text fills."""

    def __init__(self, path: Path, most: int) -> None:
        self.story = Story()
        self.writer = self.story.agent("writer")
        self.texts = ContextTexts(most)
        self.index = TenantIndex(ACCOUNT, Catalog(path, "stream"), self.texts)

    def memory(self, content: str, by: Principal | None = None, **facts: object) -> int:
        t, by = self.story.t, by or self.writer
        s = self.story.memory(by, **facts)
        [vector] = EMBEDDER.encode([content])
        meta = encode(self.story.written(by, **facts))
        row = MemoryRow(s, meta, content, (), "", "", "", "", "")
        self.index.apply([NewMemory(row, int(t.columns.project[s]), frozenset(terms(content)), vector, False)], s, s, b"")
        return s

    def evidence(self, agent: Principal, content: str) -> Evidence:
        """What a write of this agent would be found to be made from."""
        ctx = self.story.context(agent)
        text = finished(self.index.context(ctx, self.story.t, EMBEDDER))
        mine = text_of(content, EMBEDDER.encode([content])[0])
        number = next(iter(self.index.projects))
        return text.evidence(mine, ctx.served, self.index.df([number]), 1_000, self.story.ms + LATER_MS, b"", b"")

    def near(self, agent: Principal, content: str, push: Principal) -> tuple[int, ...]:
        """Special texts that the write counts as made from; `push` writes before and pushes the agent's context out."""
        self.evidence(push, FERRY)
        return self.evidence(agent, content).near


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "catalog.sqlite", most=1)
    yield made
    made.index.close()


def parents(evidence: Evidence) -> list[int]:
    return [pair.parent for pair in evidence.copied]


def test_a_context_that_was_let_go_finds_its_copies_again(desk: Desk) -> None:
    one, two = desk.story.agent("one"), desk.story.agent("two")
    secret, ferry = desk.memory(SECRET), desk.memory(FERRY)
    desk.story.serve(one, secret)
    desk.story.serve(two, ferry)
    for _ in range(3):  # each pushes the other out
        assert parents(desk.evidence(one, SECRET)) == [secret]
        assert len(desk.texts) == 1
        assert parents(desk.evidence(two, FERRY)) == [ferry]
        assert parents(desk.evidence(two, SECRET)) == []
    desk.story.serve(one, ferry)
    assert parents(desk.evidence(one, FERRY)) == [ferry]
    assert parents(desk.evidence(one, SECRET)) == [secret]


def paraphrase(i: int) -> str:
    """It keeps the rare words of SECRET, and none of its sentence."""
    return f"Last spring Meridian {' '.join(f'padding{i}x{k}' for k in range(24))}: moved by Halvorsen, they say, an account"


def test_however_often_it_repeats_words_it_was_served_a_context_that_is_made_again_finds_their_copies(desk: Desk) -> None:
    """One word at a time is no copy, and a few hundred notes later nobody would look at it again."""
    agent = desk.story.agent("agent")
    secret = desk.memory(SECRET)
    desk.story.serve(agent, secret)
    assert parents(desk.evidence(agent, paraphrase(0))) == [secret]
    for i in range(40):
        for word in ("Halvorsen", "Meridian", "account", "spring", "moved"):
            desk.memory(f"{word} is a word in note {i}", agent)
    for i in range(300):
        desk.memory(f"the kettle is on shelf {i}", agent)
    desk.texts.let_go((ACCOUNT, desk.story.context(agent).id))
    assert parents(desk.evidence(agent, paraphrase(1))) == [secret]


def test_a_context_that_is_made_again_is_looked_for_only_where_its_family_wrote(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root may have two thousand projects, and each word that was served would be looked up in all of them."""
    looked_up: list[str] = []
    df = LexicalIndex.df

    def counting(self: LexicalIndex, term: str) -> int:
        looked_up.append(term)
        return df(self, term)

    for i in range(50):
        desk.story.project(f"other{i}")
        desk.memory(FERRY, project=f"other{i}")
    agent = desk.story.agent("agent")
    desk.story.serve(agent, desk.memory(SECRET))
    for _ in range(3):
        desk.memory(SECRET, agent)
    monkeypatch.setattr(LexicalIndex, "df", counting)
    text = finished(desk.index.context(desk.story.context(agent), desk.story.t, EMBEDDER))
    assert text._echoed == dict.fromkeys(text.heard(), 3), "and there it counts what it counted"
    assert len(looked_up) == len(text.heard()), "one project of 51"


def test_words_that_an_agent_brought_in_itself_are_common_to_it_when_its_context_is_made_again(desk: Desk) -> None:
    """What it goes on writing about is no copy of its own notes, nor of what others made of them."""
    agent, other = desk.story.agent("agent"), desk.story.agent("other")
    own = [desk.memory(f"Halvorsen of Meridian moved the account again, spring {i}", agent) for i in range(40)]
    answer = desk.memory("The account that Halvorsen of Meridian moved is closed", other)
    desk.story.serve(agent, own[0], answer)
    for _ in range(2):
        assert parents(desk.evidence(agent, paraphrase(0))) == []
        desk.texts.let_go((ACCOUNT, desk.story.context(agent).id))


def test_what_a_context_was_on_the_way_to_hear_when_its_store_failed_is_heard_at_the_next_try(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = desk.story.agent("one")
    ferry, secret = desk.memory(FERRY), desk.memory(SECRET)
    desk.story.serve(one, ferry)
    assert parents(desk.evidence(one, FERRY)) == [ferry]
    desk.story.serve(one, secret)

    def failing(seqs: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(desk.index.catalog, "fetch", failing)
        with pytest.raises(OSError, match="disk full"):
            desk.evidence(one, SECRET)
    assert parents(desk.evidence(one, SECRET)) == [secret]
    assert parents(desk.evidence(one, FERRY)) == [ferry]


def test_two_batches_never_look_into_one_context(desk: Desk) -> None:
    """The second would miss what the first is still bringing up."""
    one = desk.story.agent("one")
    desk.story.serve(one, desk.memory(SECRET))
    first = desk.index.context(desk.story.context(one), desk.story.t, EMBEDDER)
    next(first)
    with pytest.raises(RuntimeError, match="two batches"):
        next(desk.index.context(desk.story.context(one), desk.story.t, EMBEDDER))
    finished(first)


def test_within_the_bound_nothing_is_let_go_and_the_sum_is_that_of_what_is_kept(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "catalog.sqlite", most=1 << 20)
    agents = [desk.story.agent(f"a{i}") for i in range(20)]
    for agent in agents:
        desk.story.serve(agent, desk.memory(SECRET))
        desk.evidence(agent, FERRY)
    assert len(desk.texts) == 20
    assert desk.texts.bytes == sum(desk.texts.of((ACCOUNT, a.agent.id)).size for a in agents) > 20 * 1_024
    desk.texts.drop(ACCOUNT)
    assert (len(desk.texts), desk.texts.bytes) == (0, 0)
    desk.index.close()


def test_contexts_that_only_write_are_bounded_too(tmp_path: Path) -> None:
    """A gateway makes as many as it has users, and each may bring a long text of its own."""
    desk = Desk(tmp_path / "catalog.sqlite", most=1 << 20)
    story = desk.story
    secret = desk.memory(SECRET)
    reader = story.agent("reader")
    story.serve(reader, secret)
    desk.evidence(reader, FERRY)
    [vector] = EMBEDDER.encode([FERRY])
    for i in range(40):
        ctx = story.context(story.agent(f"session{i}"))
        text = finished(desk.index.context(ctx, story.t, EMBEDDER))
        before = text.size
        text.wrote(text_of(" ".join(f"word{i}x{j}" for j in range(1_000)), vector))
        assert text.size - before > 1_000 * 50
        desk.texts.weigh((ACCOUNT, ctx.id), text)
        assert desk.texts.bytes <= 1 << 20
    assert len(desk.texts) < 10
    assert parents(desk.evidence(reader, SECRET)) == [secret]
    desk.index.close()


def test_a_context_that_was_let_go_is_behind_by_all_that_it_was_served(desk: Desk) -> None:
    one, two = desk.story.agent("one"), desk.story.agent("two")
    key, ctx = (ACCOUNT, one.agent.id), desk.story.context(one)
    for i in range(5):
        desk.story.serve(one, desk.memory(f"{SECRET} {i}"))
    assert desk.texts.behind(key, ctx) == 5
    desk.evidence(one, FERRY)
    assert desk.texts.behind(key, ctx) == 0
    desk.story.serve(two, desk.memory(FERRY))
    desk.evidence(two, FERRY)  # pushes it out
    assert desk.texts.behind(key, ctx) == 5


def test_a_special_text_can_not_be_taken_bit_by_bit_with_a_push_out_between(desk: Desk) -> None:
    """Each write takes too little to be a copy. Together they are one, whoever pushed the context out meanwhile."""
    one, two = desk.story.agent("one", tags=["see:restricted"]), desk.story.agent("two")
    words = "quince brazier lantern heron mistral gantry ferrule isthmus"
    secret, ferry = desk.memory(words, class_=2), desk.memory(FERRY)
    desk.story.serve(one, secret)
    desk.story.serve(two, ferry)
    assert secret not in desk.near(one, "my uncle keeps the quince in the shed behind the old house", push=two)
    assert secret not in desk.near(one, "some brazier was in the shed behind the old house when my uncle came", push=two)
    assert secret in desk.near(one, "they have a lantern in the shed behind the old house of my uncle", push=two)


def test_of_an_epoch_that_is_over_nothing_stays(desk: Desk) -> None:
    one, two = desk.story.agent("one", tags=["see:restricted"]), desk.story.agent("two")
    secret, ferry = desk.memory("quince brazier lantern heron mistral gantry", class_=2), desk.memory(FERRY)
    desk.story.serve(one, secret)
    desk.story.serve(two, ferry)
    desk.evidence(one, "the quince stands in the shed")
    desk.evidence(two, FERRY)  # pushes it out
    contexts = [desk.story.context(agent) for agent in (one, two)]
    desk.texts.end(ACCOUNT, [(ctx.id, ctx.epoch - 1) for ctx in contexts])  # of an earlier one: nothing is lost
    assert desk.index.forget(one.agent.id, frozenset({secret}), desk.story.t)
    desk.evidence(one, "the brazier stands in the shed")
    desk.evidence(two, FERRY)
    desk.texts.end(ACCOUNT, [(ctx.id, ctx.epoch) for ctx in contexts])
    assert not desk.index.forget(one.agent.id, frozenset({secret}), desk.story.t)
    assert (len(desk.texts), desk.texts.bytes) == (0, 0)


def test_what_is_erased_is_forgotten_of_a_context_that_was_let_go_too(desk: Desk) -> None:
    one, two = desk.story.agent("one"), desk.story.agent("two")
    secret = desk.memory("quince brazier lantern heron mistral gantry ferrule isthmus", class_=2)
    desk.story.serve(one, secret)
    desk.story.serve(two, desk.memory(FERRY))
    desk.evidence(one, "the quince stands")
    desk.evidence(two, FERRY)
    assert len(desk.texts) == 1
    assert desk.index.forget(one.agent.id, frozenset({secret}), desk.story.t)
    assert not desk.index.forget(one.agent.id, frozenset({secret}), desk.story.t), "nothing is left to forget"


def test_a_quiet_moment_s_step_is_one_project_s_however_many_are_behind(desk: Desk) -> None:
    vectors = np.random.default_rng(3).normal(size=(200, DIM)).astype(np.float32)
    projects = [desk.index.project(number) for number in (7, 8)]
    for project in projects:
        project.vectors = ProjectVectors(DIM, hnsw_from=150, exact_below=100)
        project.vectors.add(vectors)
    assert [p.vectors.backlog for p in projects] == [200, 200]
    assert desk.index.catch_up()
    assert [p.vectors.backlog for p in projects] == [200 - CATCH_UP_ROWS, 200]
    while desk.index.catch_up():
        pass
    assert [p.vectors.backlog for p in projects] == [0, 0]
