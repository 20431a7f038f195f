"""Run the statements of the Scheduler on connections of other libraries."""
