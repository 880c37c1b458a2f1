"""Webhooks: one POST of a JSON body to a URL, signed, with a deadline."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

from twisted.internet.defer import Deferred
from twisted.web.client import Agent, HTTPConnectionPool

from broker.wall_clock import wall

MAX_ANSWER = 64 * 1024
"""Bytes of an answer that are read and discarded; a longer one ends the connection."""


class WebhookFailed(Exception):
    """A webhook that did not take the request; the message gives the reason."""


class Webhooks:
    """The client of all webhooks."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._client: Any = None
        """Made for the first request: most brokers have no webhooks, and run without treq."""

    async def post(self, url: str, body: bytes, secret: str | None, seconds: float) -> None:
        """Send a request. Raises `WebhookFailed` unless the answer has a status from 200 to 299.

        A redirection is a failure: the secret and the content are for the configured URL.
        """
        headers: dict[bytes | str, bytes | str] = {"Content-Type": "application/json", "User-Agent": "elkobroker"}
        if secret is not None:
            stamp = str(int(wall(self._reactor)))
            headers |= {"X-Elkobroker-Timestamp": stamp, "X-Elkobroker-Signature": signature(secret, stamp, body)}
        request: Deferred[Any] = Deferred.fromCoroutine(self._post(url, body, headers))
        request.addTimeout(seconds, self._reactor)
        try:
            await request
        except WebhookFailed:
            raise
        except Exception as error:
            raise WebhookFailed(str(error) or type(error).__name__) from None

    def _made(self) -> Any:
        if self._client is None:
            # Imported here: treq imports the reactor, which the command line chooses.
            from treq.client import HTTPClient

            pool = HTTPConnectionPool(self._reactor, persistent=False)
            self._client = HTTPClient(Agent(self._reactor, pool=pool))
        return self._client

    async def _post(self, url: str, body: bytes, headers: dict[bytes | str, bytes | str]) -> None:
        answer = await self._made().post(url, data=body, headers=headers, allow_redirects=False)
        left = MAX_ANSWER

        def take(data: bytes) -> None:
            nonlocal left
            left -= len(data)
            if left < 0:
                raise WebhookFailed("the answer is too long")

        await answer.collect(take)
        if not 200 <= answer.code < 300:
            raise WebhookFailed(f"the answer has status {answer.code}")


def signature(secret: str, stamp: str, body: bytes) -> str:
    """Return the signature of a request: ``sha256=`` and the HMAC of its time, a dot and its body, in hexadecimal."""
    return "sha256=" + hmac.new(secret.encode(), stamp.encode() + b"." + body, hashlib.sha256).hexdigest()
