DROP TABLE {schema}scheduler_results;
