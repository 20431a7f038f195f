"""Answer the probes of a supervisor: ``/livez``, ``/readyz`` and ``/startupz``.

``health_app()`` is an ASGI application for a web application that has a server. ``serve_health()`` answers
from a thread with an event loop of its own. So it also answers while a job blocks the event loop of the
Scheduler, and names this job. Both import the standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Final, Protocol
from urllib.parse import parse_qs

from pg_scheduler.base.health import Health, HealthCheck, Probe
from pg_scheduler.base.text.remedies import SCHEDULER_REMEDY
from pg_scheduler.telemetry.server import Answer, App, Request, ThreadServer, answering, listen, text_answer

__all__ = ["HealthServer", "HealthSource", "health_app", "serve_health"]

PROBES: Final[dict[str, Probe]] = {"livez": "live", "readyz": "ready", "startupz": "started"}


class HealthSource(Protocol):
    """A Scheduler, or anything else that has a health."""

    def health(self) -> Health:
        """Return the health; called in the thread that responds."""


def check_source(source: object) -> None:
    """Raise TypeError unless an object has a health."""
    # The method of a class has no object whose health it could return.
    if isinstance(source, type) or not callable(getattr(source, "health", None)):
        raise TypeError(
            f"source must be a Scheduler or a SyncScheduler, not {type(source).__name__}; {SCHEDULER_REMEDY}"
        )


def health_app(source: HealthSource) -> App:
    """Return an ASGI application that responds to the probes, to be mounted in a web application.

    A blocked event loop blocks this application too, but not ``serve_health()``.

    Args:
        source: The Scheduler.

    Raises:
        TypeError: ``source`` has no health.
    """
    check_source(source)

    async def answer(request: Request) -> Answer:
        """Return the answer to a probe, which is read from memory."""
        return _answer(source, request)

    return answering(answer)


def _answer(source: HealthSource, request: Request) -> Answer:
    """Return the answer to the request of a probe: status 200 if the Scheduler passes it, else 503.

    The body is JSON if the client accepts that; else "ok", or a line for each check if the probe fails or has
    the option ``verbose``. The option ``exclude`` names checks that do not count.
    """
    # The application may be mounted below any path, so only the last part of the path counts.
    probe = PROBES.get(request.path.rstrip("/").rpartition("/")[2])
    if probe is None:
        return text_answer(404, "not found: the probes are /livez, /readyz and /startupz\n")
    if request.method not in {"GET", "HEAD"}:
        return text_answer(405, "the probes are read by GET\n")
    options = parse_qs(request.query, keep_blank_values=True)
    # The option may be repeated, and each of its values may have several names.
    exclude = {name for value in options.get("exclude", ()) for name in value.split(",") if name}
    health = source.health()
    passes = health.passes(probe, exclude=exclude)
    status = 200 if passes else 503
    if "application/json" in request.accept:
        return Answer(status, "application/json", _json(health, passes=passes))
    if passes and "verbose" not in options:
        return text_answer(status, "ok\n")
    return text_answer(status, _verbose(health, probe, exclude, passes=passes))


def _json(health: Health, *, passes: bool) -> bytes:
    """Return the health as a line of JSON, with all checks."""
    report = {
        "ok": passes,
        "live": health.live,
        "ready": health.ready,
        "started": health.started,
        **asdict(health),
    }
    return json.dumps(report).encode() + b"\n"


def _verbose(health: Health, probe: Probe, exclude: set[str], *, passes: bool) -> str:
    """Return a line for each check of the probe, and for each check that only informs and has no probe."""
    checks = [check for check in health.checks if probe in check.probes or not check.probes]
    lines = [_line(check, is_excluded=check.name in exclude) for check in checks]
    unknown_names = exclude - {check.name for check in health.checks}
    lines += [f"[!]{name!r} is excluded, but no check has this name" for name in sorted(unknown_names)]
    lines.append(f"{probe}: {'yes' if passes else 'no'}\n")
    return "\n".join(lines)


def _line(check: HealthCheck, *, is_excluded: bool) -> str:
    """Return a line about a check; "[+]" if its probe may pass, "[-]" if not, "[!]" if it only informs."""
    if is_excluded:
        return f"[+]{check.name} excluded: {check.text}"
    if check.is_ok:
        return f"[+]{check.name} ok: {check.text}"
    mark = "-" if check.probes else "!"
    return f"[{mark}]{check.name} failed: {check.text}"


# -- the server ----------------------------------------------------------------------------------------


class HealthServer(ThreadServer):
    """A server that responds to the probes from its own thread."""


@contextmanager
def serve_health(source: HealthSource, host: str = "127.0.0.1", port: int = 8080) -> Iterator[HealthServer]:
    """Answer the probes over HTTP, from a thread with an event loop of its own, within a ``with`` block.

    Args:
        source: The Scheduler.
        host: The address to listen on; ``"0.0.0.0"`` for every interface, as a kubelet requires.
        port: The port; 0 for a free one, which the attribute ``port`` of the server states.

    Raises:
        OSError: The address cannot be used.
        TypeError: ``source`` has no health, or another value has the wrong type.
        ValueError: There is no such port.
    """
    check_source(source)
    with (
        listen(host, port) as listening,
        HealthServer(partial(_answer, source), listening, "pg_scheduler health") as server,
    ):
        yield server
