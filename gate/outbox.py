"""Handing frames to the broker's connection without suspending: nothing may run between a last look and the FIFO buffer."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from nats.aio.client import Client

log = logging.getLogger(__name__)


PENDING_BYTES_MAX: Final = 48 << 20  # the connection's own limit is higher (gate.service)


class Outbox:
    """`send` buffers; the client's flusher writes. Failures are counted: the caller retries."""

    def __init__(self, nc: Client) -> None:
        self.nc = nc
        self.failed: Counter[str] = Counter()

    def send(self, subject: str, data: bytes) -> None:
        if not subject:
            return
        if self.nc.pending_data_size + len(data) > PENDING_BYTES_MAX:  # beyond it the client would wait for the socket
            self.failed["backlog"] += 1
            return
        publish = self.nc.publish(subject, data)
        try:
            publish.send(None)
        except StopIteration:
            return
        except Exception as e:  # not connected, buffer full, bad reply subject: the request times out at the caller
            self.failed[type(e).__name__] += 1
            return
        publish.close()
        raise AssertionError("publish suspended: the last look is void")
