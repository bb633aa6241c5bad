"""What an agent of the demo does with an order, over the shared file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import anyio
import pytest

from agents_demo.minds import Scripted
from agents_demo.orders import Act, Ask, Compose, Echo, Fetch, Note, Read, Report, line, order_of, report_of
from agents_demo.roles import Agent
from agents_demo.scenario import Agent as Role
from agents_demo.scenario import Record, Task
from agents_demo.stores import SharedFile
from agents_demo.swarm import AgentStopped, Arena, swarm

PAY = Task(
    name="pay", project="p", about="which account has Oakham?", tool="pay", risk="privileged", value=r"\d{4}-\d{4}"
)  # fmt: skip
READ = Read(project="p", uri="mail:1", text="Oakham has the account 1020-3344.\nThe oven is old.\n")


def agent(folder: Path, name: str = "a") -> Agent:
    return Agent(SharedFile(folder / "shared.jsonl"), Scripted("brief", Random(name)))


def run(done: Callable[[], Awaitable[None]]) -> None:
    anyio.run(done)


def test_it_reads_asks_fetches_and_records(tmp_path: Path) -> None:
    async def done() -> None:
        reader, other = agent(tmp_path), agent(tmp_path)
        wrote = (await reader.do(READ)).wrote
        assert [w.content for w in wrote] == ["Oakham has the account 1020-3344.", "The oven is old."]
        assert [s.id for s in (await other.do(Ask(project="p", about="which account has Oakham?"))).served] == [wrote[0].id]
        assert (await other.do(Ask(project="q", about="which account has Oakham?"))).served == []
        assert [s.content for s in (await other.do(Fetch(project="p", ids=[wrote[1].id]))).served] == ["The oven is old."]
        record = Record(uri="erp:1", project="p", tool="erp", text="Ledger: 1.")
        assert (await other.do(Note(project="p", record=record))).wrote[0].content == "Ledger: 1."

    run(done)


def test_what_it_writes_names_what_it_used_and_not_what_it_saw(tmp_path: Path) -> None:
    async def done() -> None:
        reader, planner = agent(tmp_path), agent(tmp_path)
        source = (await reader.do(READ)).wrote[0]
        await reader.do(Read(project="p", uri="x", text="Oakham has a mill and an account clerk."))
        plan = await planner.do(Compose(project="p", verb="plan", about=PAY.about, task=PAY))
        assert len(plan.served) == 2
        assert [w.used for w in plan.wrote] == [[source.id]]

    run(done)


def test_it_rewrites_and_echoes_only_its_own(tmp_path: Path) -> None:
    async def done() -> None:
        reader, writer = agent(tmp_path), agent(tmp_path)
        source = (await reader.do(READ)).wrote[0]
        rewrite = Compose(project="p", verb="rewrite", about=PAY.about)
        assert (await writer.do(rewrite)).wrote == []
        mine = (await writer.do(Compose(project="p", verb="summarise", about=PAY.about))).wrote[0]
        assert (await writer.do(rewrite)).wrote[0].used == [mine.id]
        assert (await writer.do(Echo(project="p", id=mine.id))).wrote[0].used == [mine.id]
        assert (await writer.do(Echo(project="p", id=source.id))).wrote == []

    run(done)


def test_it_calls_a_tool_and_notes_that_or_asks_a_person(tmp_path: Path) -> None:
    async def done() -> None:
        reader, ops = agent(tmp_path), agent(tmp_path)
        asked = (await ops.do(Act(project="p", task=PAY))).call
        assert asked is not None
        assert asked.value is None
        source = (await reader.do(READ)).wrote[0]
        report = await ops.do(Act(project="p", task=PAY))
        assert report.call is not None
        assert (report.call.value, report.call.used) == ("1020-3344", [source.id])
        assert report.wrote[0].used == [source.id]

    run(done)


def test_orders_and_reports_come_back_as_they_were() -> None:
    for order in (READ, Act(project="p", task=PAY), Compose(project="p", verb="code", about="x", task=PAY)):
        assert order_of(line(order)) == order
    assert report_of(line(Report(withheld={"held": 2}))) == Report(withheld={"held": 2})


def test_an_agent_that_can_t_go_on_is_named_without_a_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    nowhere = Arena({"reader": {"DEMO_FILE": str(tmp_path / "no" / "file")}})
    with swarm(nowhere, [Role(name="reader")], 1) as agents, pytest.raises(AgentStopped, match="reader stopped: FileNotFound"):
        agents["reader"].do(READ)
    assert capfd.readouterr().err == ""
