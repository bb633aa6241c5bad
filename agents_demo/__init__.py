"""The demo swarm: agents that share memory through `bus` alone, which proves that it suffices; and the same agents over a plain
store.

scenario.py, scenarios/            what there is to read, to ask and to do
roles.py, orders.py, stores.py     an agent's process, what it is told and reports, where its memory lies
minds.py, voices.py, model.py      how an agent words and decides: by script, or by a language model
swarm.py, harness.py               start the processes and play the scenario
containment.py, neighbour.py       the person who holds the poison, and the tenant next door
truth.py                           what became of the poison
report.py, page.py, graph.py       the result to look at

Invariant: nothing here imports anything of ours but `bus`; who starts a home is no concern of it.
"""
