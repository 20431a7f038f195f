DROP TABLE {schema}scheduler_workers;
