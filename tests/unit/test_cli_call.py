"""Who, where and in which project a command acts: the order of precedence, on a real home without a running broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_config.home import Current, Home, write_private
from broker_config.trust import AgentRequest, Trust
from bus.identity import creds_text, keypair
from cli.call import Call
from cli.exits import Exit, Failure


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """`acme` with `one` (p1), `two` (p1, p2) and `none` (no project)."""
    home = Home(tmp_path_factory.mktemp("home"))
    home.create()
    trust = Trust(home, lambda: 1_700_000_000.0)
    trust.create()
    trust.make_tenant("acme")
    for name, projects in (("one", ("p1",)), ("two", ("p1", "p2")), ("none", ())):
        key = keypair("user")
        jwt = trust.agent_jwt(AgentRequest("acme", name, projects=projects), key.public)
        write_private(home.agent_creds("acme", name), creds_text(jwt, key))
    return home


def call(home: Home, principal: str = "", project: str = "", **env: str) -> Call:
    return Call(env=env, principal=principal, project=project, home_path=str(home.path))


def refused(make: Call) -> Failure:
    with pytest.raises(Failure) as caught:
        make.project_for(make.credential())
    return caught.value


def test_a_credential_comes_from_the_option_before_the_variables_before_use(home: Home) -> None:
    home.write_current(Current(principal="acme/none"))
    elsewhere = str(home.agent_creds("acme", "two"))
    assert call(home, "acme/one", CORDON_AS="acme/two", CORDON_CREDS=elsewhere).credential().name == "one"
    assert call(home, CORDON_AS="acme/one", CORDON_CREDS=elsewhere).credential().name == "one"
    assert call(home, CORDON_CREDS=elsewhere).credential().name == "two"
    assert call(home).credential().name == "none"


def test_without_any_choice_it_says_how_to_choose(home: Home) -> None:
    home.write_current(Current())
    with pytest.raises(Failure, match="Nobody to act as") as caught:
        call(home).credentials()
    assert caught.value.code == Exit.USAGE
    assert "cordon use" in caught.value.advice


@pytest.mark.parametrize(("principal", "near"), [("acmee/one", "acme"), ("acme/tow", "two")])
def test_an_unknown_tenant_or_agent_is_refused_with_the_nearest_name(home: Home, principal: str, near: str) -> None:
    with pytest.raises(Failure) as caught:
        call(home, principal).credentials()
    assert caught.value.code == Exit.USAGE
    assert f"Did you mean '{near}'?" in caught.value.advice


@pytest.mark.parametrize("principal", ["acme", "acme/", "/one", "acme/one/x", "../acme", "acme/..", "Acme/one", "acme/*"])
def test_a_name_that_is_no_tenant_and_agent_is_refused(home: Home, principal: str) -> None:
    with pytest.raises(Failure, match="is not TENANT/AGENT"):
        call(home, principal).credentials()


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_credential_file_that_is_missing_or_no_text_is_named(home: Home, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.creds"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Failure) as caught:
        call(home, CORDON_CREDS=str(path)).credential()
    assert caught.value.code == Exit.USAGE
    assert str(path) in caught.value.message


def test_a_project_comes_from_the_option_before_the_variable_before_use_before_the_only_tag(home: Home) -> None:
    home.write_current(Current(principal="acme/two", project="p2"))
    two, one = call(home, "acme/two").credential(), call(home, "acme/one").credential()
    assert call(home, project="p9", CORDON_PROJECT="p8").project_for(two) == "p9"
    assert call(home, CORDON_PROJECT="p8").project_for(two) == "p8"
    assert call(home).project_for(two) == "p2"
    assert call(home).project_for(one) == "p1"  # `use` chose a project that this one hasn't


def test_a_credential_of_several_projects_needs_a_choice_and_gets_the_list(home: Home) -> None:
    home.write_current(Current())
    several, none = refused(call(home, "acme/two")), refused(call(home, "acme/none"))
    assert several.code == none.code == Exit.USAGE
    assert "2 projects: p1, p2" in several.message
    assert "has no project" in none.message


def test_an_address_comes_from_the_variable_or_the_running_home(home: Home) -> None:
    assert call(home, CORDON_URL="nats://127.0.0.1:1").url() == "nats://127.0.0.1:1"
    with pytest.raises(Failure) as caught:
        call(home).url()
    assert caught.value.code == Exit.UNAVAILABLE
    assert "cordon up --detach" in caught.value.advice


def test_a_home_comes_from_the_option_before_the_variable(home: Home, tmp_path: Path) -> None:
    assert Call(env={"CORDON_HOME": str(tmp_path)}, home_path=str(home.path)).home.path == home.path
    assert Call(env={"CORDON_HOME": str(tmp_path)}).home.path == tmp_path
    assert Call(env={}).home.path == Path.cwd() / ".cordon"


def test_with_an_address_and_a_credential_no_home_is_needed(home: Home, tmp_path: Path) -> None:
    creds = str(home.agent_creds("acme", "one"))
    away = Call(env={"CORDON_URL": "nats://127.0.0.1:1", "CORDON_CREDS": creds}, home_path=str(tmp_path / "none"))
    assert away.url() == "nats://127.0.0.1:1"
    assert away.project_for(away.credential()) == "p1"
