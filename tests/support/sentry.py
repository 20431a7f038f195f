"""Sentry's own SDK with a transport that keeps the envelopes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.asyncpg import AsyncPGIntegration
from sentry_sdk.integrations.dedupe import DedupeIntegration
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.integrations.threading import ThreadingIntegration
from sentry_sdk.transport import Transport


class Kept(Transport):
    """Keeps what would be sent."""

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        self.items: list[tuple[str, dict[str, Any]]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            if item.type in {"event", "transaction", "check_in"}:
                self.items.append((item.type, json.loads(item.payload.get_bytes())))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [item for type_, item in self.items if type_ == kind]

    @property
    def errors(self) -> list[str]:
        """The classes of the exceptions of the events."""
        return [event["exception"]["values"][-1]["type"] for event in self.of("event")]

    def transactions(self, job_name: str) -> list[dict[str, Any]]:
        return [each for each in self.of("transaction") if each["transaction"] == job_name]


@contextmanager
def reporting() -> Iterator[Kept]:
    """Initialise the SDK, and yield what it would send."""
    transport = Kept()
    with sentry_sdk.isolation_scope(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("SENTRY_RELEASE", "tests")  # else the SDK asks git
        sentry_sdk.init(
            dsn="https://key@sentry.invalid/1",
            transport=transport,
            traces_sample_rate=1.0,
            default_integrations=False,
            integrations=[
                AsyncPGIntegration(),
                DedupeIntegration(),
                LoggingIntegration(),
                ThreadingIntegration(),
            ],
        )
        yield transport
        sentry_sdk.get_client().close(timeout=0)
        sentry_sdk.get_global_scope().set_client(None)
