"""Who vouches for what a copy says of itself that the chain's hashes can't: that a text was taken out of it by an erasure.

The gatekeeper's key signs it and proves it: where its credential is, beside the home or in a copy with keys, a note that somebody
else changed or made is seen.
"""

from __future__ import annotations

import base64
from functools import cached_property
from pathlib import Path

from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from bus.identity import Keypair, parse_creds, raw_public


class Notary:
    """The key of a gatekeeper's credential, read when it is first used. Then `ConfigError` or OSError if that can't be."""

    def __init__(self, creds: Path) -> None:
        self._creds = creds

    @cached_property
    def _key(self) -> Keypair:
        return Keypair(parse_creds(self._creds.read_text()).seed)

    def sign(self, data: bytes) -> str:
        return base64.urlsafe_b64encode(self._key.sign(data)).decode()

    def signed(self, data: bytes, signature: str) -> bool:
        """Whether this very key signed it."""
        try:
            VerifyKey(raw_public(self._key.public)).verify(data, base64.urlsafe_b64decode(signature))
        except (BadSignatureError, ValueError):
            return False
        return True
