"""Whether a key is in use on two hosts at once."""

from __future__ import annotations

from gate.state.seats import AGAIN_MS, CONNECTIONS_MAX, Seats

HOME, AWAY = ("n1", 7), ("n1", 9)


def test_a_key_that_moves_from_host_to_host_is_not_shared() -> None:
    seats = Seats()
    for i in range(5):
        assert not seats.used(("n1", i), f"10.0.0.{i}", i)
    assert seats.sharing is None


def test_several_connections_of_one_host_are_not_sharing() -> None:
    seats = Seats()
    assert not any(seats.used(c, "10.0.0.1", ms) for ms, c in enumerate([HOME, AWAY, HOME, AWAY, HOME]))
    assert seats.sharing is None


def test_a_connection_used_before_and_after_that_of_another_host_is() -> None:
    seats = Seats()
    assert not seats.used(HOME, "10.0.0.1", 1)
    assert not seats.used(AWAY, "10.0.0.2", 2)
    assert seats.used(HOME, "10.0.0.1", 3)
    assert seats.sharing is not None
    assert (seats.sharing.first_ms, seats.sharing.last_ms, seats.sharing.hosts) == (3, 3, {"10.0.0.1", "10.0.0.2"})


def test_it_is_told_once_and_again_when_it_goes_on_or_a_host_is_new() -> None:
    seats = Seats()
    told = [seats.used(c, c[0], 0) for c in [("a", 1), ("b", 2)] * 3]
    assert told == [False, False, True, False, False, False]
    assert seats.used(("a", 1), "a", AGAIN_MS)
    assert not seats.used(("c", 3), "c", AGAIN_MS)
    assert seats.used(("a", 1), "a", AGAIN_MS)


def test_the_same_number_on_another_server_is_another_connection() -> None:
    seats = Seats()
    assert not any(seats.used((server, 7), server, 0) for server in ("n1", "n2", "n3"))


def test_what_is_kept_of_connections_is_bounded() -> None:
    seats = Seats()
    for i in range(10 * CONNECTIONS_MAX):
        seats.used(("n", i), f"h{i}", i)
    assert not seats.used(("n", 0), "h0", 10_000)  # forgotten: it may be new


def test_a_replay_tells_that_and_when_a_key_was_shared() -> None:
    seats = Seats()
    seats.told(5)
    seats.told(3)
    assert seats.sharing is not None
    assert (seats.sharing.last_ms, seats.sharing.hosts) == (5, set())
