"""The doctor: checks of the database, the tables, workers, jobs and schedules, each with a remedy."""
