"""The supervisor on real processes: a real broker, a gatekeeper of a few lines, real kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker_config import supervisor
from broker_config.home import Home
from broker_config.processes import command_line
from broker_config.status import Status, last_status
from broker_config.supervision import Restarts
from broker_config.supervisor import locked, read_status, start, stop
from bus.errors import ConfigError, Unavailable

from .world import lock_left_behind

DEADLINE_S = 15.0

# What the supervisor knows of a gatekeeper: its pid in the ready file while it serves, exit 65 when it refuses.
GATEKEEPER = """
import json, os, pathlib, signal, sys, threading
run, what = pathlib.Path(sys.argv[1]) / "run", sys.argv[2]
if what == "refuse":
    problem = {"reason": "ledger_went_back", "message": "It went back.", "advice": "Look."}
    (run / "gatekeeper.error").write_text(json.dumps(problem))
    sys.exit(65)
if what == "die":
    sys.exit(7)
first = run.parent / "first"  # "once" is never ready again
served = what == "once" and first.exists()
first.touch()
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
if what in ("serve", "once") and not served:
    (run / "gatekeeper.ready").write_text(str(os.getpid()))
stop.wait()
(run / "gatekeeper.ready").unlink(missing_ok=True)
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path / "home")
    yield made
    stop(made)


def gatekeeper(home: Home, what: str = "serve") -> list[str]:
    return [sys.executable, "-c", GATEKEEPER, str(home.path), what]


def up(home: Home, what: str = "serve") -> Status:
    return start(home, detach=True, gatekeeper=gatekeeper(home, what))


def status_when(home: Home, condition: Callable[[Status], bool]) -> Status:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        status = read_status(home)
        if status is not None and condition(status):
            return status
        assert time.monotonic() < deadline, f"not in time: {status}"
        time.sleep(0.02)


def gone(*pids: int) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while any(command_line(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_up_is_ready_with_all_its_processes_and_down_leaves_none(home: Home) -> None:
    lines: list[str] = []
    status = start(home, detach=True, gatekeeper=gatekeeper(home), on_line=lines.append)
    assert (status.state, status.url, status.error) == ("ready", home.url, None)
    assert set(status.pids) == {"supervisor", "broker", "gatekeeper", "issuer", "janitor"}
    assert read_status(home) == status
    assert lines[-1] == f"ready: {home.url}"
    assert home.exists
    assert stop(home) == ["supervisor", "broker", "gatekeeper", "issuer", "janitor"]
    assert gone(*status.pids.values())
    assert read_status(home) is None
    assert sorted(p.name for p in home.run.iterdir()) == ["status.json", "up.lock"]
    assert stop(home) == []


def test_the_port_and_the_keys_stay_over_a_restart(home: Home) -> None:
    first, key = up(home), home.core_creds("admin").read_bytes()
    stop(home)
    assert (up(home).url, home.core_creds("admin").read_bytes()) == (first.url, key)


def test_a_home_that_is_up_is_in_use_and_goes_on(home: Home) -> None:
    before = up(home)
    with pytest.raises(ConfigError) as refused:
        up(home)
    assert refused.value.reason == "already_up"
    with pytest.raises(ConfigError), locked(home):
        pass
    assert read_status(home) == before
    stop(home)
    with locked(home):
        assert read_status(home) is None


@pytest.mark.parametrize("killed", ["broker", "gatekeeper", "issuer", "janitor"])
def test_a_killed_process_is_started_again(home: Home, killed: str) -> None:
    before = up(home)
    os.kill(before.pids[killed], signal.SIGKILL)
    after = status_when(home, lambda s: s.state == "ready" and s.pids.get(killed, 0) not in (0, before.pids[killed]))
    others = before.pids.keys() - {killed}
    assert {n: after.pids[n] for n in others} == {n: before.pids[n] for n in others}
    assert after.error is None


def test_a_mistake_in_the_settings_of_a_running_home_stops_nothing_that_runs(home: Home) -> None:
    before = up(home)
    right = home.config.read_text()
    home.config.write_text(f"{right}[quotas\n")
    os.kill(before.pids["issuer"], signal.SIGKILL)  # what it shows next, it shows with the mistake there
    after = status_when(home, lambda s: s.pids.get("issuer", 0) not in (0, before.pids["issuer"]))
    assert (after.state, after.url, after.pids["broker"]) == ("ready", before.url, before.pids["broker"])
    os.kill(before.pids["gatekeeper"], signal.SIGKILL)  # it is not started with settings that nobody can read
    told = status_when(home, lambda s: s.error is not None and s.error.reason == "config_invalid")
    assert (told.state, told.pids["broker"]) == ("degraded", before.pids["broker"])
    assert stop(home)
    home.config.write_text(right)
    assert up(home).state == "ready"


def test_a_killed_supervisor_takes_its_children_along_and_up_works_again(home: Home) -> None:
    before = up(home)
    os.kill(before.pids["supervisor"], signal.SIGKILL)
    assert gone(*before.pids.values())
    assert read_status(home) is None
    assert stop(home) == []
    assert up(home).state == "ready"


def test_up_waits_for_what_a_killed_supervisor_had_just_forked_and_no_longer(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.create()
    with lock_left_behind(home.up_lock) as end_soon:
        with monkeypatch.context() as patched:
            patched.setattr(supervisor, "ENDING_S", 0.1)
            with pytest.raises(ConfigError) as refused:
                up(home)
        assert refused.value.reason == "already_up"
        monkeypatch.setattr(supervisor, "ENDING_S", DEADLINE_S)
        end_soon()
        assert up(home).state == "ready"


def test_down_finishes_what_a_killed_supervisor_left(home: Home) -> None:
    """Where the kernel doesn't end orphans (outside Linux), `stop` finds them: here a broker that was started by hand."""
    up(home)
    stop(home)
    code = (
        "import sys, time; from broker_config.home import Home; from broker_config.server import start_server;"
        "start_server(Home(sys.argv[1])); print('up', flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(home.path)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()
    try:
        with pytest.raises(ConfigError, match="own broker") as refused:
            up(home)
        assert refused.value.reason == "port_taken"
        pid = int(home.pid_file("broker").read_text())
        assert stop(home) == ["broker"]
        assert gone(pid)
    finally:
        parent.kill()
        parent.communicate()
    assert up(home).state == "ready"


def test_a_pid_file_that_names_a_stranger_stops_nobody(home: Home) -> None:
    home.create()
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        home.pid_file("broker").write_text(str(stranger.pid))
        assert stop(home) == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_gatekeeper_that_refuses_to_serve_is_left_alone_and_the_broker_stays(home: Home) -> None:
    status = up(home, "refuse")
    assert status.state == "degraded"
    assert status.error is not None
    assert (status.error.reason, status.error.advice) == ("ledger_went_back", "Look.")
    assert set(status.pids) == {"supervisor", "broker"}
    log = home.log("supervisor").read_text()
    assert log.count("gatekeeper started") == 1
    assert "degraded: It went back. Look. A restart alone changes nothing; after that: `cordon down`" in refused_again(home)
    stop(home)
    assert up(home).state == "ready"


def refused_again(home: Home) -> str:
    """What a second up of a home says that is up and doesn't serve."""
    with pytest.raises(Unavailable) as refused:
        up(home)
    return f"{refused.value.message} {refused.value.advice}"


def test_a_gatekeeper_that_keeps_dying_is_named_by_a_second_up(home: Home) -> None:
    before = up(home, "once")
    os.kill(before.pids["gatekeeper"], signal.SIGKILL)
    status_when(home, lambda s: s.state == "degraded" and s.error is not None)
    said = refused_again(home)
    assert "degraded: The gatekeeper ended with signal 9. It is started again by itself" in said
    assert "If that doesn't help: `cordon down`" in said


def test_an_up_in_the_background_says_what_goes_wrong_on_the_way_and_nothing_else(home: Home) -> None:
    lines: list[str] = []

    def told(line: str) -> None:
        lines.append(line)
        status = read_status(home)
        if status is not None:
            os.kill(status.pids["supervisor"], signal.SIGTERM)  # enough seen

    with pytest.raises(Unavailable):
        start(home, detach=True, gatekeeper=gatekeeper(home, "die"), on_line=told, troubles_alone=True)
    assert lines
    assert all("The gatekeeper ended with" in line for line in lines)
    lines.clear()
    status = start(home, detach=True, gatekeeper=gatekeeper(home), on_line=lines.append, troubles_alone=True)
    assert (status.state, lines) == ("ready", [])


def test_a_lost_ledger_keeps_the_gatekeeper_from_starting(home: Home) -> None:
    assert up(home).state == "ready"
    stop(home)
    for stream in home.broker_js.rglob("LEDGER_0"):
        shutil.rmtree(stream)
    status = up(home)
    assert (status.state, set(status.pids)) == ("degraded", {"supervisor", "broker"})
    assert status.error is not None
    assert status.error.reason == "stream_missing"


def test_a_gatekeeper_that_is_never_ready_is_stopped_in_time(home: Home) -> None:
    with pytest.raises(Unavailable) as refused:
        start(home, detach=True, ready_timeout_s=1.5, gatekeeper=gatekeeper(home, "wait"))
    assert refused.value.reason == "not_ready"
    assert read_status(home) is None


def test_exposed_seeds_are_refused_at_up(home: Home) -> None:
    up(home)
    stop(home)
    home.core_creds("admin").chmod(0o644)
    with pytest.raises(ConfigError) as refused:
        up(home)
    assert refused.value.reason == "seeds_exposed"
    home.core_creds("admin").chmod(0o600)
    assert up(home).state == "ready"


# --- giving up
def test_the_wait_doubles_up_to_its_most_and_starts_over_after_a_quiet_minute() -> None:
    restarts = Restarts()
    assert [restarts.died(now) for now in (0, 20, 40, 60.5, 81, 101.5)] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    assert restarts.died(162) == 0.5


def test_five_deaths_in_a_minute_are_the_end_and_four_are_not() -> None:
    restarts = Restarts()
    assert [restarts.died(now) for now in (0, 10, 20, 30)] == [0.5, 1.0, 2.0, 4.0]
    assert restarts.died(59) is None
    spread = Restarts()
    assert None not in [spread.died(now) for now in (0, 10, 20, 30, 61, 71.5)]


def test_a_gatekeeper_that_keeps_dying_ends_everything_with_exit_6(home: Home) -> None:
    code = (
        "import json, sys; from broker_config.home import Home; from broker_config.supervision import Restarts, Supervisor;"
        "sys.exit(Supervisor(Home(sys.argv[1]), json.loads(sys.argv[2]), Restarts(first_s=0.01)).run())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(home.path), json.dumps(gatekeeper(home, "die"))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 6
    assert run.stdout.count("gatekeeper started") == 5
    status = last_status(home)
    assert status is not None
    assert status.error is not None
    assert (status.state, status.pids, status.error.reason) == ("stopped", {}, "gatekeeper_keeps_dying")
    assert read_status(home) is None


# --- as the command line uses it
UP = (
    "import json, sys; from broker_config.home import Home; from broker_config.supervisor import start;"
    "print(start(Home(sys.argv[1]), detach=sys.argv[3] == 'detach', gatekeeper=json.loads(sys.argv[2]), on_line=print).state)"
)


def test_a_detached_up_closes_its_pipes_and_outlives_its_starter(home: Home) -> None:
    command = [sys.executable, "-c", UP, str(home.path), json.dumps(gatekeeper(home)), "detach"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert run.stdout.splitlines()[-1] == "ready"
    status = read_status(home)
    assert status is not None
    assert set(status.pids) == {"supervisor", "broker", "gatekeeper", "issuer", "janitor"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_what_ends_a_foreground_up_ends_its_processes(home: Home, number: signal.Signals) -> None:
    command = [sys.executable, "-c", UP, str(home.path), json.dumps(gatekeeper(home)), "stay"]
    foreground = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        status = status_when(home, lambda s: s.state == "ready")
        foreground.send_signal(number)
        out, _ = foreground.communicate(timeout=30)
    finally:
        foreground.kill()
        foreground.wait()
    assert gone(*status.pids.values())
    assert foreground.returncode == (0 if number != signal.SIGKILL else -signal.SIGKILL)
    if number != signal.SIGKILL:
        assert out.decode().splitlines()[-1] == "stopped"
    ended = last_status(home)
    assert ended is not None
    assert (ended.state, ended.pids) == ("stopped", {})
