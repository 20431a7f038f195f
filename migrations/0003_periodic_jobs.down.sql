DROP TABLE {schema}scheduler_periodic_jobs;
