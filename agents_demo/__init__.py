"""The demo swarm: agents that share memory through `bus` alone, which proves that it suffices; and the same agents over a
plain store.
"""
