"""A script with cron and combining triggers, ported from APScheduler's BlockingScheduler."""
