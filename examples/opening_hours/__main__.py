"""The jobs of a shop by its opening hours: a script ported from APScheduler.

Before, a BlockingScheduler ran cron and combining triggers. An AndTrigger of an interval and a cron trigger
searches for instants at which both fire, and holidays had to be checked in the jobs::

    scheduler = BlockingScheduler(timezone="Europe/Berlin")
    scheduler.add_job(count_stock, AndTrigger([IntervalTrigger(minutes=30), CronTrigger(hour="9-16")]))
    scheduler.add_job(lock_up, OrTrigger([CronTrigger(day_of_week="mon-fri", hour=17, minute=30),
                                          CronTrigger(day_of_week="sat", hour=13)]))
    scheduler.add_job(close_books, CronTrigger(day="1st mon", hour=8))
    scheduler.start()

Now a trigger is combined with sets of instants: ``&`` keeps the fire times within a set, ``-`` those outside
of it. Two scripts, or a script and a web service, share the schedules: each fire time runs once. Start it::

    DATABASE_URL=postgresql://localhost/shop python -m examples.opening_hours
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import date, time

from pg_scheduler import ConflictResolution, current_job, job
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.triggers import Cron, During, Every

__all__ = ["SCHEDULES", "main"]

BERLIN = "Europe/Berlin"
OPEN = During(weekdays="mon-fri", start=time(9), end=time(17, 30), timezone=BERLIN) | During(
    weekdays="sat", start=time(10), end=time(13), timezone=BERLIN
)
HOLIDAYS = During(dates=(date(2029, 12, 25), date(2029, 12, 26), date(2030, 1, 1)), timezone=BERLIN)

STOCK = (Every(minutes=30) & OPEN) - HOLIDAYS
LOCK_UP = (Cron("30 17 * * 1-5", timezone=BERLIN) | Cron("0 13 * * 6", timezone=BERLIN)) - HOLIDAYS
BOOKS = Cron("0 8 * * MON", timezone=BERLIN) & Cron("0 8 1-7 * *", timezone=BERLIN)  # the first Monday


@job(name="shop.count_stock")
def count_stock() -> None:
    """Count the stock. It is a plain function, so it runs in a thread."""
    print("counting the stock at", current_job().fire_time, flush=True)


@job(name="shop.lock_up")
def lock_up() -> None:
    """Lock the shop up."""
    print("locking up at", current_job().fire_time, flush=True)


@job(name="shop.close_books")
def close_books() -> None:
    """Close the books."""
    print("closing the books at", current_job().fire_time, flush=True)


@job(name="shop.read_till")
def read_till() -> None:
    """Read the till."""
    print("reading the till", flush=True)


SCHEDULES = {
    "stock": (count_stock, STOCK),
    "lock-up": (lock_up, LOCK_UP),
    "books": (close_books, BOOKS),
    "till": (read_till, Every(seconds=1)),
}


def main() -> None:
    """Store the schedules, print when each fires next, and run the jobs until Ctrl-C."""
    with SyncScheduler(os.environ["DATABASE_URL"]) as scheduler, suppress(KeyboardInterrupt):
        scheduler.start()
        for name, (func, trigger) in SCHEDULES.items():
            schedule = scheduler.schedules.add(
                func, trigger, schedule_id=name, conflict_resolution=ConflictResolution.REPLACE
            )
            print(f"{name}: {trigger}; next {schedule.next_fire_at}", flush=True)
        scheduler.wait()


if __name__ == "__main__":
    main()
