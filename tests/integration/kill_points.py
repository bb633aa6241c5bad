"""kill -9 at a named step: the real process, but for one wrapper each around the functions whose steps have a name.

A test writes the step into `run/kill-at` of the home (`order`); the process that reaches it takes the file away and kills itself,
or another process, once. The product knows nothing of it.
"""

from __future__ import annotations

from pathlib import Path

from .world import World

STEPS_PER_START = 4  # at five deaths within a minute the supervisor gives up

# The head of a program `--home HOME …`: `around(owner, name, before=STEP, after=STEP, when=of its positional arguments)`.
AROUND = """
import functools, inspect, os, signal, sys
from pathlib import Path
home = Path(sys.argv[2])
order = home / "run" / "kill-at"
def at(step, when=lambda *a: True, args=()):
    if step and order.exists() and order.read_text().partition("|")[0] == step and when(*args):
        victim = int(order.read_text().partition("|")[2] or os.getpid())
        order.unlink()
        os.kill(victim, signal.SIGKILL)
def around(owner, name, before="", after="", when=lambda *a: True):
    f = getattr(owner, name)
    if inspect.iscoroutinefunction(f):
        async def wrapper(*args, **named):
            at(before, when, args)
            result = await f(*args, **named)
            at(after, when, args)
            return result
    else:
        def wrapper(*args, **named):
            at(before, when, args)
            result = f(*args, **named)
            at(after, when, args)
            return result
    setattr(owner, name, functools.wraps(f)(wrapper))
"""


def order(world: World, step: str, victim: int = 0) -> Path:
    """Whoever reaches `step` next kills itself, or the process `victim`."""
    path = world.home.run / "kill-at"
    new = path.with_name("kill-at.new")
    new.write_text(f"{step}|{victim or ''}")
    new.replace(path)
    return path
