"""The gatekeeper's time when the machine's clock is set: nothing expires by a jump, and time never goes back."""

from __future__ import annotations

import pytest

from bus.errors import ConfigError
from gate.clock import AHEAD_MAX_S, BEHIND_MAX_S, FOLLOWED_S, STAYED_S, SteadyClock

NOON_S = 1_800_000_000.0  # 2027-01-15
DAY_S, YEAR_S = 86_400.0, 365 * 86_400.0


class Machine:
    """A machine whose clock can be set."""

    def __init__(self) -> None:
        self.running, self.set_by = 100.0, 0.0
        self.clock = SteadyClock(lambda: NOON_S + self.running - 100.0 + self.set_by, lambda: self.running)

    def after(self, seconds: float) -> float:
        """Seconds of the gatekeeper's time since noon, so much later."""
        self.running += seconds
        return self.clock() / 1000 - NOON_S


def test_time_passes_and_small_corrections_are_followed() -> None:
    m = Machine()
    assert m.after(10) == 10
    m.set_by = FOLLOWED_S - 1
    assert m.after(10) == 20 + FOLLOWED_S - 1
    assert m.clock.trouble == ""


@pytest.mark.parametrize("by_s", [70 * YEAR_S, 3_600.0])
def test_a_clock_that_is_set_ahead_for_a_moment_changes_nothing(by_s: float) -> None:
    m = Machine()
    m.set_by = by_s
    assert [m.after(60) for _ in range(5)] == [60, 120, 180, 240, 300]
    assert "ahead of the gatekeeper's" in m.clock.trouble
    m.set_by = 0.0
    assert m.after(60) == 360
    assert m.clock.trouble == ""


def test_a_jump_that_stays_is_followed_but_not_one_of_seventy_years() -> None:
    m = Machine()
    m.set_by = 3 * DAY_S
    assert m.after(1) == 1
    assert m.after(STAYED_S) == 1 + STAYED_S + 3 * DAY_S
    m.set_by += 70 * YEAR_S
    for _ in range(10):
        m.after(STAYED_S)
    assert m.after(0) == 1 + 11 * STAYED_S + 3 * DAY_S
    assert "not followed; set the machine's clock" in m.clock.trouble


def test_a_jump_must_stay_where_it_is_to_be_followed() -> None:
    m = Machine()
    for jump in range(20):
        m.set_by = (1 + jump % 2) * 3_600.0
        m.after(STAYED_S / 4)
    assert m.after(0) == 20 * STAYED_S / 4


def test_a_clock_that_is_set_back_is_waited_for_and_time_never_goes_back() -> None:
    m = Machine()
    m.set_by = -3_600.0
    said = [m.after(600) for _ in range(80)]
    assert said == sorted(said)
    assert said[0] == pytest.approx(540)  # slower
    assert said[-1] == pytest.approx(80 * 600 - 3_600)
    assert m.clock.trouble == ""
    m.set_by = -70 * YEAR_S
    assert m.after(600) == pytest.approx(81 * 600 - 3_600)
    assert "behind the gatekeeper's" in m.clock.trouble


@pytest.mark.parametrize("ledger_s", [0.0, 1.0, BEHIND_MAX_S - 1, 1 - AHEAD_MAX_S])
def test_a_start_is_never_before_the_newest_block(ledger_s: float) -> None:
    m = Machine()
    m.clock.begin(int((NOON_S + ledger_s) * 1000))
    assert m.after(0) == max(0.0, ledger_s)
    assert m.after(10) >= max(10.0, ledger_s)


@pytest.mark.parametrize("ledger_s", [BEHIND_MAX_S + 1, -AHEAD_MAX_S - 1, 70 * YEAR_S, -70 * YEAR_S + DAY_S])
def test_a_clock_that_can_t_be_right_stops_a_start_until_a_person_names_the_day(ledger_s: float) -> None:
    m, newest_ms = Machine(), int((NOON_S + ledger_s) * 1000)
    for witness in ("", "2027-01-12", "yesterday"):
        with pytest.raises(ConfigError) as refused:
            m.clock.begin(newest_ms, witness)
        assert refused.value.reason == "clock_implausible"
        assert 'clock = "2027-01-15"' in refused.value.advice
    m.clock.begin(newest_ms, "2027-01-15")
    assert m.after(0) == 0


def test_time_that_nobody_saw_pass_is_told_from_what_was_lived_through() -> None:
    m, noon_ms, day_ms = Machine(), int(NOON_S * 1000), int(DAY_S * 1000)
    for day in (-40, -39, -9, -8):  # a replay's blocks: a month, and a week from the last to the start, are in no block
        m.clock.met(noon_ms + day * day_ms)
    m.clock.begin(noon_ms - 8 * day_ms)
    m.clock.met(m.clock())
    since = [m.clock.unseen_ms(noon_ms + day * day_ms) for day in (-40, -20, -9, -8, -1, 0)]
    assert since == [day_ms * days for days in (38, 19, 8, 8, 1, 0)]
    m.set_by = 3 * DAY_S  # a jump while it runs, that is followed
    m.after(1)
    m.after(STAYED_S)
    assert m.clock.unseen_ms(noon_ms) == 3 * day_ms
    m.after(0.9 * DAY_S)
    assert m.clock.unseen_ms(noon_ms) == 3 * day_ms
    assert m.clock.unseen_ms(m.clock()) == 0


@pytest.mark.parametrize(("by_s", "unseen_s"), [(15 * 3_600.0, 15 * 3_600.0), (600.0, 0.0)])
def test_hours_that_a_running_machine_s_clock_jumps_are_unseen_too(by_s: float, unseen_s: float) -> None:
    m = Machine()
    m.clock.begin(int(NOON_S * 1000))
    m.clock.met(m.clock())
    m.after(10 * 3_600.0)
    m.set_by = by_s
    m.after(1)
    m.after(STAYED_S)
    assert m.clock.unseen_ms(int(NOON_S * 1000)) == pytest.approx(unseen_s * 1000, abs=1)


def test_an_empty_ledger_begins_whenever_the_machine_says() -> None:
    m = Machine()
    m.clock.begin(0)
    assert m.after(0) == 0
