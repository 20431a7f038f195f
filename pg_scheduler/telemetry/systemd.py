"""Notify systemd of the state of a Scheduler, for services of ``Type=notify``.

A thread sends the notifications. It feeds the watchdog of systemd only while the Scheduler is live, so
systemd restarts a service whose event loop hangs. Without ``NOTIFY_SOCKET`` in the environment, nothing
happens.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from pg_scheduler.base.fork import inheritance
from pg_scheduler.base.health import Health
from pg_scheduler.telemetry.probes import HealthSource, check_source

__all__ = ["notify_systemd"]

INTERVAL_S: Final = 5.0
"""Seconds between two notifications, unless the watchdog requires shorter intervals."""

STARTING_INTERVAL_S: Final = 0.5
"""Seconds between two notifications until the Scheduler has started."""

EXTENSION_S: Final = 30.0
"""Seconds by which each notification during the shutdown extends the timeout of systemd."""


@contextmanager
def notify_systemd(source: HealthSource) -> Iterator[None]:
    """Send READY, STATUS, WATCHDOG, STOPPING and EXTEND_TIMEOUT_USEC within a ``with`` block.

    Args:
        source: The Scheduler.

    Raises:
        TypeError: ``source`` has no health.
    """
    check_source(source)
    address = os.environ.get("NOTIFY_SOCKET")
    # systemd has not started this process, or wants no notifications.
    if not address:
        yield
        return
    ended = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
        notifications.setblocking(False)
        inheritance.close_in_children(notifications)
        # An at sign stands for the NUL character with which abstract addresses begin.
        name = "\0" + address[1:] if address.startswith("@") else address
        interval_s = _interval_s()

        def send(text: str) -> None:
            """Send a notification; drop it if systemd does not take it."""
            with suppress(OSError):  # a full or missing socket
                notifications.sendto(text.encode(), name)

        def run() -> None:
            """Send notifications in the thread until the block ends."""
            while True:
                health = source.health()
                send(_notification(health))
                # systemd waits for the end of the start, so the notification of that must not come late.
                pause_s = interval_s if health.started else min(interval_s, STARTING_INTERVAL_S)
                if ended.wait(pause_s):
                    return

        thread = threading.Thread(target=run, name="pg_scheduler systemd", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            send("STOPPING=1")


def _interval_s() -> float:
    """Return half of the watchdog's interval, as systemd recommends, at most ``INTERVAL_S``.

    Without a watchdog for this process, it is ``INTERVAL_S``.
    """
    process_id = str(os.getpid())
    # The variables are those of another process, such as a parent, if they name its id.
    if os.environ.get("WATCHDOG_PID", process_id) != process_id:
        return INTERVAL_S
    watchdog_us = os.environ.get("WATCHDOG_USEC", "")
    if not watchdog_us.isdecimal() or int(watchdog_us) == 0:
        return INTERVAL_S
    watchdog_s = int(watchdog_us) / 1e6
    return min(watchdog_s / 2, INTERVAL_S)


def _notification(health: Health) -> str:
    """Return the lines for this state. Each notification repeats them, so one that is lost does no harm."""
    lines = [f"STATUS={_status(health)}"]
    if health.state == "draining":
        lines += ["STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(EXTENSION_S * 1e6)}"]
    elif health.started:
        lines.append("READY=1")
    if health.live:
        lines.append("WATCHDOG=1")
    return "\n".join(lines)


def _status(health: Health) -> str:
    """Return one line: the slots, when the next job is due, and the checks that fail."""
    state = "" if health.state == "running" else f"{health.state}, "
    slots = f"{state}{health.slots_busy} of {health.slots} slots"
    if health.next_due_s is not None:
        slots += f", next due in {health.next_due_s:.0f} s"
    failures = [f"{check.name}: {check.text}" for check in health.checks if check.probes and not check.is_ok]
    text = "; ".join([slots, *failures])
    return " ".join(text.split())  # without line breaks, which would end the status
