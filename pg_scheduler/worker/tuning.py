"""The internal tuning values of a worker. Only tests change them."""

from __future__ import annotations

from dataclasses import dataclass, field

from pg_scheduler.worker.event_relay import RelayOptions
from pg_scheduler.worker.lease.keeper import KeeperOptions
from pg_scheduler.worker.lease.watchdog import WatchdogOptions
from pg_scheduler.worker.listener import ListenerOptions
from pg_scheduler.worker.maintenance.deadline_scanner import ScannerOptions
from pg_scheduler.worker.maintenance.expirer import ExpirerOptions
from pg_scheduler.worker.maintenance.name_reporter import NameReporterOptions
from pg_scheduler.worker.maintenance.rescuer import RescuerOptions
from pg_scheduler.worker.maintenance.statistics_writer import StatisticsWriterOptions
from pg_scheduler.worker.maintenance.vacuum import VacuumOptions
from pg_scheduler.worker.pipeline.claimer import ClaimerOptions
from pg_scheduler.worker.pipeline.result_buffer import ResultBufferOptions
from pg_scheduler.worker.pipeline.unblocker import UnblockerOptions
from pg_scheduler.worker.service import BackoffOptions


@dataclass(frozen=True, slots=True)
class Tuning:
    """The internal options of every part of a worker."""

    backoff: BackoffOptions = field(default_factory=BackoffOptions)
    claimer: ClaimerOptions = field(default_factory=ClaimerOptions)
    expirer: ExpirerOptions = field(default_factory=ExpirerOptions)
    keeper: KeeperOptions = field(default_factory=KeeperOptions)
    listener: ListenerOptions = field(default_factory=ListenerOptions)
    names: NameReporterOptions = field(default_factory=NameReporterOptions)
    relay: RelayOptions = field(default_factory=RelayOptions)
    rescuer: RescuerOptions = field(default_factory=RescuerOptions)
    results: ResultBufferOptions = field(default_factory=ResultBufferOptions)
    scanner: ScannerOptions = field(default_factory=ScannerOptions)
    statistics: StatisticsWriterOptions = field(default_factory=StatisticsWriterOptions)
    unblocker: UnblockerOptions = field(default_factory=UnblockerOptions)
    vacuum: VacuumOptions = field(default_factory=VacuumOptions)
    watchdog: WatchdogOptions = field(default_factory=WatchdogOptions)
