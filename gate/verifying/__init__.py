"""Verification: the whole ledger read again in a process of its own, and everything that was made of it compared with it.

survey    the chains of a ledger, whatever is wrong with them (pure)
expected  what a ledger and READS must have been made into
stores    catalogs and lineage store, compared with that
live      the gatekeeper's live state, compared with that
answers   the gatekeeper's side: positions, digests and rows, each in a moment
run       the process: `python -m gate --verify`

Nothing here changes anything. A finding names the record; the walk goes on after it.
"""
