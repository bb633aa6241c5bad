"""What a context remembers, what its reads join, what ends it, and that a replay of its records gives the same."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gate.config import COMPARTMENTS_MAX, CONTEXT_WINDOW_IDS, DAY_MS
from gate.ledger import events as E
from gate.state.compartments import MANY
from gate.state.contexts import FRESH_MAX, Context
from gate.writing.decide import decide

from .story import Story


def labels(ctx: Context) -> tuple[int, int, int, int, bool, list[str]]:
    j = ctx.labels.joined()
    return j.floor, j.origin, j.class_, j.sens, j.opt_out, j.comp


def record(story: Story, ctx: Context, agent: bytes, number: int, *seqs: int) -> E.Served:
    """The READS record of a recall that has just been registered."""
    return E.Served(
        ms=story.ms, recall=b"r" * 16, ctx=ctx.id, epoch=ctx.epoch, ctx_seq=number, agent=agent, project="p1", verb="query",
        items=[(s, 0, 0) for s in seqs], joined=ctx.labels.joined(),
    )  # fmt: skip


# --- joining ------------------------------------------------------------------------------------------
def test_a_new_context_is_clean_and_a_read_joins_the_strictest_of_everything() -> None:
    story = Story("p1", "p2")
    writer, reader = story.agent("writer"), story.agent("reader")
    good = story.memory(writer, trust=800, floor=700, origin=3)
    bad = story.memory(writer, trust=400, floor=150, origin=0, class_=2, sens=1, opt_out=True, comp=["project:p2", "user:usr_x"])
    ctx = story.context(reader)
    assert labels(ctx) == (1000, 5, 0, 0, False, [])
    assert story.serve(reader, good) == 1
    assert labels(ctx) == (700, 3, 1, 0, False, ["project:p1"])
    assert story.serve(reader, bad) == 2
    assert labels(ctx) == (150, 0, 2, 1, True, ["project:p1", "project:p2", "user:usr_x"])
    assert story.serve(reader, good) == 3
    assert labels(ctx)[0] == 150  # nothing good makes up for it


def test_beyond_the_window_only_the_labels_stay() -> None:
    story = Story()
    writer, reader = story.agent("writer"), story.agent("reader")
    first = story.memory(writer, trust=100, floor=100, origin=0)
    others = [story.memory(writer) for _ in range(CONTEXT_WINDOW_IDS)]
    story.serve(reader, first)
    ctx = story.context(reader)
    story.serve(reader, *others[:-1])
    assert first in ctx.served
    story.serve(reader, others[0])  # served again: it is the newest now, and stays the longer
    story.serve(reader, others[-1])
    assert first not in ctx.served
    assert others[0] in ctx.served
    assert len(ctx.served) == CONTEXT_WINDOW_IDS
    assert ctx.labels.floor == 100


def test_an_agents_own_texts_push_out_nobody_elses_and_restricted_ones_go_last_and_leave_their_mark() -> None:
    story = Story()
    writer, reader = story.agent("writer"), story.agent("reader")
    secret, plain = story.memory(writer, class_=2, comp=["project:p1", "user:usr_x"]), story.memory(writer)
    own = [story.memory(reader) for _ in range(CONTEXT_WINDOW_IDS + 10)]
    story.serve(reader, secret, plain, *own)
    ctx = story.context(reader)
    assert {secret, plain} < ctx.served.keys()
    story.serve(reader, *[story.memory(writer) for _ in range(CONTEXT_WINDOW_IDS - 1)])
    assert plain not in ctx.served
    assert secret in ctx.served
    assert (ctx.fallen_cls, ctx.fallen_comp) == (0, set())
    story.serve(reader, *[story.memory(writer, class_=2) for _ in range(CONTEXT_WINDOW_IDS)])
    assert secret not in ctx.served
    assert (ctx.fallen_cls, ctx.fallen_comp) == (2, {"project:p1", "user:usr_x"})
    e = decide(story.draft(reader), "", story.ms)
    assert (e.class_, set(e.comp)) == (2, {"project:p1", "user:usr_x"})
    assert "flow_down:user:usr_x" in e.holds


def test_nor_do_the_texts_of_a_child() -> None:
    """Its parent's head is its own: it must not empty that by reading back what it wrote."""
    story = Story()
    writer, reader = story.agent("writer"), story.agent("reader")
    plain = story.memory(writer)
    story.serve(reader, plain)
    story.apply(
        E.AgentDelegated(
            ms=story.ms, agent=b"child".ljust(16), name="child", key="Uchild", role="agent", projects=["p1"],
            parent=reader.agent.id, via=reader.key, expires=story.ms + 1_000,
        )
    )  # fmt: skip
    child = replace(reader, agent=story.t.agents.by_name["child"], key="Uchild")
    story.serve(child, *[story.memory(child) for _ in range(CONTEXT_WINDOW_IDS + 10)])
    assert plain in story.context(reader).served


def test_users_that_fell_out_of_the_window_are_many_and_no_longer_list() -> None:
    story = Story()
    writer, reader = story.agent("writer"), story.agent("reader")
    for i in range(COMPARTMENTS_MAX + 1):
        story.serve(reader, story.memory(writer, user=f"usr_{i:016d}", comp=[f"user:usr_{i:016d}"]))
    for _ in range(2):
        story.serve(reader, *[story.memory(writer, class_=2) for _ in range(CONTEXT_WINDOW_IDS)])
    assert story.context(reader).fallen_comp == {MANY}


def test_what_an_agent_read_elsewhere_and_stored_is_in_its_head_too() -> None:
    story = Story()
    for role, heard in (("agent", True), ("ingest", False)):
        agent = story.agent(role, role=role)
        page = story.memory(agent, origin=0, origin_claimed=0, trust=250, floor=250)
        ctx = story.context(agent)
        assert (page in ctx.served) == heard
        assert labels(ctx)[:2] == ((250, 0) if heard else (1000, 5))
        inferred = story.memory(agent, origin=1, origin_claimed=1)
        assert inferred not in ctx.served


def test_a_reader_who_never_writes_keeps_its_list_of_what_is_new_short_and_whole() -> None:
    story = Story()
    writer, reader = story.agent("writer"), story.agent("reader")
    once, often = story.memory(writer), [story.memory(writer) for _ in range(8)]
    story.serve(reader, once)
    for _ in range(FRESH_MAX // len(often) * 3):
        story.serve(reader, *often)
    epoch, fresh = story.context(reader).fresh
    assert len(fresh) <= FRESH_MAX
    assert (epoch, set(fresh)) == (0, {once, *often})


def test_siblings_of_a_delegation_share_the_context_of_their_root() -> None:
    story = Story()
    writer, parent = story.agent("writer"), story.agent("parent")
    for name in ("child", "sibling"):
        story.apply(
            E.AgentDelegated(
                ms=story.ms, agent=name.encode().ljust(16), name=name, key=f"U{name}", role="agent", projects=["p1"],
                parent=parent.agent.id, via=parent.key, expires=story.ms + 1_000,
            )
        )  # fmt: skip
    agents = story.t.agents.by_name
    assert story.t.context_of(agents["child"]) is story.context(parent) is story.t.context_of(agents["sibling"])
    assert story.t.context_of(agents["writer"]) is story.context(writer) is not story.context(parent)


# --- ending -------------------------------------------------------------------------------------------
def test_a_context_idles_only_after_a_read_and_longer_than_its_time() -> None:
    story = Story()
    writer, reader = story.agent("writer"), story.agent("reader")
    memory = story.memory(writer)
    ctx = story.context(reader)
    assert not ctx.idle(story.ms + 100 * DAY_MS, DAY_MS)  # nothing was read: nothing to forget
    story.serve(reader, memory)
    assert not ctx.idle(story.ms + DAY_MS, DAY_MS)
    assert ctx.idle(story.ms + DAY_MS + 1, DAY_MS)
    assert not ctx.idle(story.ms + 1000 * DAY_MS, 0)  # 0 = never
    assert not ctx.idle(story.ms + 30 * DAY_MS, DAY_MS, lambda since_ms: since_ms - story.ms + 29 * DAY_MS)  # unseen
    assert ctx.idle(story.ms + 30 * DAY_MS + 1, DAY_MS, lambda since_ms: since_ms - story.ms + 29 * DAY_MS)


def test_what_idle_contexts_had_in_their_heads_is_let_go_without_a_request_of_theirs() -> None:
    story = Story()
    secret = story.memory(story.agent("writer"), floor=100)
    sessions = [story.agent(f"session{i}") for i in range(10)]
    for one in sessions[:8]:
        story.serve(one, secret)
    story.context(sessions[9])  # never read anything
    story.ms += DAY_MS // 2
    story.serve(sessions[7], secret)
    story.ms += DAY_MS // 2 + 1
    ended = [one for _ in range(8) for one in story.t.end_idle(story.ms, 3)]  # rounds of a few
    assert sorted(ended) == sorted((story.context(one).id, 0) for one in sessions[:7])
    contexts = [story.context(one) for one in sessions]
    assert [len(c.served) for c in contexts] == [0] * 7 + [1, 0, 0]
    assert [c.epoch for c in contexts] == [1] * 7 + [0, 0, 0]
    assert contexts[0].labels.floor == 1000
    assert contexts[7].labels.floor == 100
    assert story.serve(sessions[0], secret) == 1  # the first of the new epoch


def test_the_longest_of_an_agent_s_projects_decides_how_long_it_may_idle() -> None:
    story = Story()
    assert story.t.context_idle_ms(story.agent("day").agent) == DAY_MS
    story.project("week", context_idle_hours=7 * 24)
    assert story.t.context_idle_ms(story.agent("both").agent) == 7 * DAY_MS
    story.project("ever", context_idle_hours=0)
    assert story.t.context_idle_ms(story.agent("all").agent) == 0


def test_a_close_begins_a_clean_epoch_and_leaves_others_alone() -> None:
    story = Story()
    writer, reader, other = story.agent("writer"), story.agent("reader"), story.agent("other")
    bad = story.memory(writer, floor=100)
    story.serve(reader, bad)
    story.serve(other, bad)
    ctx = story.context(reader)
    story.apply(E.ContextClosed(ms=story.ms, ctx=ctx.id, epoch=1, agent=writer.agent.id))
    assert (ctx.epoch, ctx.recalls, len(ctx.served), ctx.labels.floor) == (1, 0, 0, 1000)
    assert (story.context(other).epoch, story.context(other).labels.floor) == (0, 100)
    assert story.serve(reader, bad) == 1


def test_a_close_that_comes_after_its_epoch_has_begun_clears_nothing() -> None:
    """The context went idle and was read again while its close was being written: that read must not be forgotten."""
    story = Story()
    writer, reader = story.agent("writer"), story.agent("reader")
    bad = story.memory(writer, floor=100)
    ctx = story.context(reader)
    ctx.begin_epoch(1)
    story.serve(reader, bad)
    story.apply(E.ContextClosed(ms=story.ms, ctx=ctx.id, epoch=1, agent=writer.agent.id))
    assert (ctx.epoch, ctx.recalls, ctx.labels.floor) == (1, 1, 100)


# --- exposure -----------------------------------------------------------------------------------------
def test_a_case_exposes_exactly_the_contexts_that_were_served_a_member_until_its_release() -> None:
    story = Story()
    writer, reader, other = story.agent("writer"), story.agent("reader"), story.agent("other")
    bad, good = story.memory(writer), story.memory(writer)
    story.serve(reader, good, bad)
    story.serve(other, good)
    one, two = story.case(writer, bad), story.case(writer, bad)
    assert story.context(reader).exposed == {one, two}
    assert story.context(other).exposed == set()
    story.release(writer, one)
    assert story.context(reader).exposed == {two}
    story.release(writer, two)
    assert story.context(reader).exposed == set()


def test_a_hold_and_a_recall_that_crossed_expose_the_context_in_either_order_of_replay() -> None:
    def told(*, hold_first: bool) -> set[bytes]:
        story = Story()
        writer, reader = story.agent("writer"), story.agent("reader")
        bad = story.memory(writer)
        ctx = story.context(reader)
        served = record(story, ctx, reader.agent.id, 1, bad)
        if hold_first:
            story.case(writer, bad)
            story.t.replay_read(served)
        else:
            story.t.replay_read(served)
            story.case(writer, bad)
        return ctx.exposed

    assert len(told(hold_first=True)) == len(told(hold_first=False)) == 1


# --- replay -------------------------------------------------------------------------------------------
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.lists(st.integers(0, 7), max_size=4, unique=True)),
        st.tuples(st.just("close"), st.just([])),
        st.tuples(st.just("idle"), st.just([])),
    ),
    max_size=12,
)


@given(OPERATIONS)
def test_replaying_the_records_gives_the_live_context(operations: list[tuple[str, list[int]]]) -> None:
    def told() -> tuple[Story, list[int]]:
        story = Story("p1", "p2")
        writer = story.agent("writer")
        story.agent("reader")
        facts = [{"floor": 100 * i, "trust": 100 * i + 50, "origin": i % 4, "class_": i % 3, "opt_out": i == 3} for i in range(8)]
        return story, [story.memory(writer, comp=[f"project:p{1 + i % 2}"], **f) for i, f in enumerate(facts)]

    live, memories = told()
    again, _ = told()
    reader = live.t.agents.by_name["reader"]
    ctx = live.t.context_of(reader)
    log: list[E.Served | E.AnyEvent] = []
    for what, which in operations:
        live.ms += 1_000
        if what == "close":
            closed = E.ContextClosed(ms=live.ms, ctx=ctx.id, epoch=ctx.epoch + 1, agent=reader.id)
            log.append(closed)
            live.apply(closed)
            continue
        if what == "idle":
            live.ms += 2 * DAY_MS
        if ctx.idle(live.ms, DAY_MS):
            ctx.begin_epoch(ctx.epoch + 1)
        seqs = [memories[i] for i in which]
        number = ctx.register(live.t.columns, live.t.comps, seqs, live.ms, b"", b"")
        live.t.note_served(reader, seqs)
        log.append(record(live, ctx, reader.id, number, *seqs))
    for entry in log:
        if isinstance(entry, E.Served):
            again.t.replay_read(entry)
        else:
            again.apply(entry)
    back = again.t.context_of(again.t.agents.by_name["reader"])
    assert (back.epoch, back.recalls, back.last_read_ms, list(back.served.items())) == (
        ctx.epoch, ctx.recalls, ctx.last_read_ms, list(ctx.served.items()),
    )  # fmt: skip
    assert labels(back) == labels(ctx)
    assert again.t.served_to == live.t.served_to


def test_a_record_of_an_epoch_that_is_over_changes_nothing() -> None:
    story = Story()
    writer, reader = story.agent("writer"), story.agent("reader")
    bad = story.memory(writer, floor=100)
    ctx = story.context(reader)
    old = record(story, ctx, reader.agent.id, 1, bad)
    story.apply(E.ContextClosed(ms=story.ms, ctx=ctx.id, epoch=1, agent=writer.agent.id))
    story.t.replay_read(old)
    assert (ctx.recalls, len(ctx.served), ctx.labels.floor) == (0, 0, 1000)
    story.t.replay_read(record(story, ctx, reader.agent.id, 1, bad))
    assert (ctx.recalls, len(ctx.served)) == (1, 1)
