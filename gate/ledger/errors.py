"""What can be wrong with the ledger. These are answers, not guesses: an unknown outcome is never raised, it is asked again.

LedgerError
├── LedgerCorrupt    stored bytes don't decode, or don't chain                   stop the shard
├── LedgerWentBack   the stream ends before, or differs from, what was seen      stop the shard; never rebuilt by itself
├── LedgerGap        a sequence is missing inside the stream                     fill it from ERASED, else stop
├── LedgerFull       the append was refused for space; nothing was stored        erase or enlarge, then go on
├── LedgerRefused    the append was refused for another reason; nothing stored   a bug or a wrong configuration
│   └── TooLarge     the block is over the size of a message; nothing stored     split it, or refuse what is in it
└── SteppedDown      another writer owns the shard                               stop serving, reads too
"""

from __future__ import annotations

from bus.errors import CordonError


class LedgerError(CordonError):
    """Base of the ledger's errors."""


class LedgerCorrupt(LedgerError):
    """`block`: the stream sequence (0 if unknown). `offset`: the byte in the block where it shows (None if it isn't one)."""

    def __init__(self, message: str, *, block: int = 0, offset: int | None = None) -> None:
        where = f"block {block}" if block else "a block"
        if offset is not None:
            where += f", byte {offset}"
        super().__init__(
            f"The ledger is damaged at {where}: {message}",
            reason="ledger_corrupt",
            advice="The shard stays stopped. Restore the stream from a copy, or find out who changed it.",
        )
        self.block = block
        self.offset = offset


class LedgerWentBack(LedgerError):
    """The trace of a lost or forged tail."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            reason="ledger_went_back",
            advice="The shard stays stopped. Restore broker/js from a copy. Only if that is impossible accept the loss: "
            "`cordon down`, then `cordon rebuild --accept-ledger NAME`.",
        )


class LedgerGap(LedgerError):
    """Sequences `seq` to `upto` (inclusive) of `stream` are missing between others."""

    def __init__(self, stream: str, seq: int, upto: int) -> None:
        span = f"Sequence {seq} is" if seq == upto else f"Sequences {seq} to {upto} are"
        super().__init__(
            f"{span} missing in {stream}.",
            reason="ledger_gap",
            advice="Only an erased block may be missing; its stripped copy must be in the ERASED stream.",
        )
        self.stream = stream
        self.seq = seq
        self.upto = upto


class LedgerFull(LedgerError):
    """No room. Nothing of this block was stored; reading goes on."""

    def __init__(self, stream: str, detail: str) -> None:
        super().__init__(
            f"{stream} has no room ({detail}); nothing was stored.",
            reason="ledger_full",
            advice="Raise the stream's max_bytes or free disk space; what is stored stays readable.",
        )


class LedgerRefused(LedgerError):
    """The broker refuses the block for good. Nothing of it was stored."""

    def __init__(self, stream: str, detail: str) -> None:
        super().__init__(
            f"{stream} refuses ({detail}); nothing was stored in it.",
            reason="ledger_refused",
            advice="Check the stream's configuration and the gatekeeper's permissions.",
        )


class TooLarge(LedgerRefused):
    """The block is larger than a message may be. Smaller ones are stored as before: no reason to stop."""


class SteppedDown(LedgerError):
    """Another writer appended where this one was about to."""

    def __init__(self, stream: str, seq: int) -> None:
        super().__init__(
            f"Sequence {seq} of {stream} was written by another gatekeeper.",
            reason="stepped_down",
            advice="One gatekeeper serves a shard: stop this one, it may neither write nor answer reads.",
        )
        self.stream = stream
        self.seq = seq
