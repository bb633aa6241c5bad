"""What must hold for a home to keep its promises about identity and isolation, looked up in its files: one check for each.

Changes nothing and asks nobody, so it works whether the home is up or not. A check that can't be made is a fault, never a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, Literal, NamedTuple, TypeVar

import msgspec

from bus.errors import CordonError

from . import doctor_server as server_checks
from . import doctor_trust as trust_checks
from .examined import Examined
from .home import Home


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One check and its verdict. `found`: each thing that is wrong, by name. `advice` is empty when all is well."""

    check: str
    verdict: Literal["ok", "fault"]
    holds: str
    found: list[str] = []
    advice: str = ""


X = TypeVar("X")


class Check(NamedTuple, Generic[X]):
    """`holds`: what is so when nothing is found. `find` names what is wrong in what is examined."""

    name: str
    holds: str
    advice: str
    find: Callable[[X], Iterator[str]]


_RENDER: Final = "Run `cordon down` and `cordon up`: the configuration is written anew at each start."
_REGISTRY: Final = (
    "If it can't be read, put trust/registry.jwt back from a copy (each snapshot has one) and start the home. Then run "
    "`cordon tenant add NAME` again for each tenant whose keys it doesn't list as they are."
)
_PUSH: Final = "Run `cordon tenant add NAME` again for that tenant: it signs and pushes the account anew, keys stay."
_CLOSE: Final = "Its keys may be known: make a new home, or if you are sure, `chmod -R go= FOLDER`."
_CHMOD: Final = "Run `chmod go= FOLDER`."
_ANOTHER: Final = "Make another with `cordon snapshot create`; `cordon snapshot verify NAME` tells all that is wrong with one."
_RESTORE: Final = "Restore the trust folder from a backup, or make a new home."

CHECKS: Final[tuple[Check[Examined], ...]] = (
    Check("secret_files", "seeds and credentials are for their owner alone", _CLOSE, server_checks.secret_files),
    Check("secret_folders", "nobody else may enter trust and creds", _CLOSE, server_checks.secret_folders),
    Check("store_folders", "nobody else may enter the home, ledger and projections", _CHMOD, server_checks.store_folders),
    Check("snapshot_folders", "nobody else may read snapshots and the keys in them", _CLOSE, server_checks.snapshot_folders),
    Check("snapshot_files", "snapshots have what their manifests say", _ANOTHER, server_checks.snapshot_files),
    Check(
        "server_version", "the nats-server is one that protects who asks",
        "Install the `gate` extra anew (`pip install -U 'cordon-bus[gate]'`), or set NATS_SERVER_BIN.",
        server_checks.server_version,
    ),
    Check("server_listen", "the server listens on loopback, or with TLS", _RENDER, server_checks.server_listen),
    Check("server_routes", "servers that join prove themselves", _RENDER, server_checks.server_routes),
    Check("server_anonymous", "nobody connects without a credential of this home", _RENDER, server_checks.server_anonymous),
    Check("server_sync", "an acknowledgement means on disk", _RENDER, server_checks.server_sync),
    Check("operator", "the operator signs itself, and only its signing keys sign", _RESTORE, trust_checks.operator),
    Check("accounts", "each account is signed by the operator and not over", _PUSH, trust_checks.accounts),
    Check("registry", "the registry is signed by the operator and grants each key its role", _REGISTRY, trust_checks.registry),
    Check("imports", "each tenant imports its own place alone, and shares who asks", _PUSH, trust_checks.imports),
    Check("role_keys", "each role's key signs exactly what the role may", _PUSH, trust_checks.role_keys),
    Check("core_users", "the home's own processes hold the least they need", _RESTORE, trust_checks.core_users),
    Check(
        "agent_credentials", "no agent's credential is wider than its role",
        "Delete that file, and add the agent anew under another name with `cordon agent add`.", trust_checks.agent_credentials,
    ),
)  # fmt: skip


def examine(home: Home, now: float) -> list[Finding]:
    """Every check of CHECKS with its verdict, in order."""
    x = Examined(home, now)
    return [judged(check, x) for check in CHECKS]


def judged(check: Check[X], x: X) -> Finding:
    """The verdict of one check. What can't be examined is a fault."""
    try:
        found = list(check.find(x))
    except CordonError as e:
        found = [e.message.removesuffix(".")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        found = [f"it can't be examined: {e.__class__.__name__}: {e}"]
    if not found:
        return Finding(check=check.name, verdict="ok", holds=check.holds)
    return Finding(check=check.name, verdict="fault", holds=check.holds, found=found, advice=check.advice)
