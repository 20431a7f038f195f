-- Drop the steps. Suspended jobs start anew at their time.

DROP TABLE {schema}scheduler_steps;
