"""The agents' processes: starts them, passes orders and reports, and ends all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

import bus

from .orders import AnyOrder, Report, line, report_of
from .scenario import Agent

STOP_S: Final = 10


class AgentStopped(bus.Unavailable):
    """An agent's process ended or could not do what it was told; the message says why."""


@dataclass(frozen=True, slots=True)
class Arena:
    """How each agent reaches its store: the environment of its process.

    Only with Cordon: `url`, `operator` (credentials), and the second tenant's credentials by agent name.
    """

    environment: Mapping[str, Mapping[str, str]]
    url: str = ""
    operator: str = ""
    neighbour: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stage:
    """Where each of the four runs takes place: with and without the poisoned documents, over a shared file and over Cordon.

    model: the name of the model that words and decides, empty for the scripted agents.
    """

    benign_file: Arena
    benign_cordon: Arena
    file: Arena
    cordon: Arena
    model: str = ""


class Member:
    """One agent's process."""

    def __init__(self, agent: Agent, environment: Mapping[str, str], seed: int) -> None:
        self.name = agent.name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agents_demo.roles", agent.name, agent.voice, str(seed)],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for the harness, which closes their stdin
        )

    def do(self, order: AnyOrder) -> Report:
        """Tell it and wait for its report. Raises AgentStopped."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line(order))
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it ended: what it said last tells why
        answer = self._process.stdout.readline()
        if not answer:
            raise AgentStopped(f"The agent {self.name} stopped with exit {self._process.wait()}.", reason="agent_stopped")
        report = report_of(answer)
        if report.error:
            raise AgentStopped(f"The agent {self.name} stopped: {report.error}", reason=report.reason)
        return report

    def stop(self) -> None:
        """Close its stdin, at which it ends; kill it if it doesn't."""
        try:
            self._process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


Swarm = Mapping[str, Member]


@contextmanager
def swarm(arena: Arena, agents: list[Agent], seed: int) -> Iterator[Swarm]:
    """All agents, started together; ended together, whatever happens."""
    with ExitStack() as stack:
        members = {}
        for agent in agents:
            members[agent.name] = member = Member(agent, arena.environment[agent.name], seed)
            stack.callback(member.stop)
        yield members
