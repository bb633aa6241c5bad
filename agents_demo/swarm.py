"""Starts the agents, one operating-system process each, and hands them their steps one at a time.

Invariants: the order of steps is the harness's alone, so a run is the same with the same seed; an agent that doesn't answer in
time is killed and named; none outlives the swarm.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from .steps import AnyStep, Report, decode_report, line

ROLES: Final = ("records", "reader", "summariser", "planner", "operations")
INGEST: Final = ("records",)  # roles whose key is an ingest key: what systems of record say
STEP_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0

Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Desk:
    """Where an operator sits: the bus and the credential."""

    url: str
    creds: str


@dataclass(frozen=True, slots=True)
class Tenancy:
    """How each role finds its store (the environment of its process), and the operator's desk where there is one."""

    environment: Mapping[str, Environment]
    desk: Desk | None = None


@dataclass(frozen=True, slots=True)
class Arena:
    """Where a run takes place. `neighbour`: a second tenant with the same names, which must stay untouched."""

    tenancy: Tenancy
    neighbour: Tenancy | None = None


class AgentStopped(RuntimeError):
    """An agent's process ended or hung; its own message is on stderr."""


class AgentProcess:
    """One agent's process."""

    def __init__(self, name: str, environment: Environment, seed: int) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "agents_demo.roles", name, str(seed)],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def do(self, step: AnyStep, timeout_s: float = STEP_TIMEOUT_S) -> Report:
        """Let it do one step, and wait for its report. AgentStopped if there is none."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        limit = threading.Timer(timeout_s, self._process.kill)
        limit.start()
        try:
            stdin.write(line(step))
            stdin.flush()
            answer = stdout.readline()
        except BrokenPipeError:
            answer = b""
        finally:
            limit.cancel()
        if not answer:
            code = self._process.wait()
            at = type(step).__name__.lower()
            raise AgentStopped(f"The agent {self.name} stopped at the step {at!r} (exit {code}): its message is above.")
        return decode_report(answer)

    def stop(self) -> None:
        """Close its stdin, at which it ends; kill it if it doesn't."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


Swarm = Mapping[str, AgentProcess]


@contextmanager
def swarm(tenancy: Tenancy, seed: int, names: Sequence[str] = ROLES) -> Iterator[Swarm]:
    """The agents of a tenancy, running; all ended afterwards."""
    started: dict[str, AgentProcess] = {}
    try:
        for name in names:
            started[name] = AgentProcess(name, tenancy.environment[name], seed)
        yield started
    finally:
        for agent in started.values():
            agent.stop()
