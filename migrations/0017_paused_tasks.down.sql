DROP TABLE {schema}scheduler_tasks;
