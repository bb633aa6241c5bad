"""Live state of a shard: what decisions are made on. The event loop alone writes it; everything in it is a projection of the
ledger.
"""
