"""The options of ``worker``, as the rest of its code reads them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What one process does.

    Attributes:
        slots: Jobs that run at the same time; None for the setting of the Scheduler.
        batch: Jobs claimed by one statement at most; None likewise.
        names: Patterns of the names that it claims; empty for all.
        drain: Whether to end once no job is due.
        max_jobs: Attempts after which it ends; None for no limit.
        max_rss_mb: Megabytes of memory at which it ends; None for no limit.
        max_age_s: Seconds after which it ends, varied by up to 10 %; None for no limit.
        health_host: The address of the probes.
        health_port: Their port; None for none.
        metrics_port: The port of the metrics of the process; None for none.
        reload: Whether to end when a source file has changed, to be started again.
        log_format: ``text`` or ``json``; None leaves the configuration of the application.
    """

    slots: int | None = None
    batch: int | None = None
    names: tuple[str, ...] = ()
    drain: bool = False
    max_jobs: int | None = None
    max_rss_mb: int | None = None
    max_age_s: float | None = None
    health_host: str = "127.0.0.1"
    health_port: int | None = None
    metrics_port: int | None = None
    log_format: str | None = None
    reload: bool = False

    @property
    def recycles(self) -> bool:
        """Whether the process ends after some work."""
        return any(each is not None for each in (self.max_jobs, self.max_rss_mb, self.max_age_s))


def read_names(text: str | None) -> tuple[str, ...]:
    """Return the patterns of a list that commas separate."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())
