"""Copies of a shard's two streams in files, and ledgers made of them again. The ledger is all that is copied: live state and
stores are replayed.

files    immutable segments of blocks, and what a folder of them holds
notary   whose signature vouches for what was taken out of a copy
capture  streams → segments, while the home serves; again into the same folder: only what is new
check    every block of a folder read again, in no home at all
compare  a restored ledger against the copy it was made of, fact by fact
carried  what a ledger of an earlier time takes over from later: erasures, holds, revocations, tighter settings (pure)
part     of a copy one tenant, and of its memories those of a project, user or agent (pure)
pour     segments → the streams of a new home, up to a block, and what is carried over
run      the processes: `python -m gate --capture | --check | --compare | --pour`

Invariant: the chain's own hashes are the checksums. They outlive an erasure: a text can leave a
copy, and the copy stays proven.
"""
