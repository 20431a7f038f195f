"""A migration as the next release may have it, and all migrations of that release."""

from __future__ import annotations

from pg_scheduler.migrate import Migration, shipped_migrations

NEXT = Migration(
    len(shipped_migrations()) + 1,
    "next_release",
    """-- expand
    ALTER TABLE {schema}scheduled_jobs ADD COLUMN more text NOT NULL DEFAULT 'x';
    ALTER TABLE {schema}scheduler_workers ADD COLUMN more text NOT NULL DEFAULT 'x';
    ALTER TABLE {schema}scheduler_schedules ADD COLUMN more text NOT NULL DEFAULT 'x';
    ALTER TABLE {schema}vacuum_stats ADD COLUMN more text NOT NULL DEFAULT 'x';
    ALTER TABLE {schema}scheduler_migrations ADD COLUMN more text NOT NULL DEFAULT 'x';
    CREATE TABLE {schema}scheduler_more (name text PRIMARY KEY);
    """,
    """
    ALTER TABLE {schema}scheduled_jobs DROP COLUMN more;
    ALTER TABLE {schema}scheduler_workers DROP COLUMN more;
    ALTER TABLE {schema}scheduler_schedules DROP COLUMN more;
    ALTER TABLE {schema}vacuum_stats DROP COLUMN more;
    ALTER TABLE {schema}scheduler_migrations DROP COLUMN more;
    DROP TABLE {schema}scheduler_more;
    """,
)
OF_NEXT_RELEASE = (*shipped_migrations(), NEXT)
