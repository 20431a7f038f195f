-- name: clock
-- route: pool
-- Return the clock of the scheduler, also late in a transaction.
SELECT coalesce($1, {now}) AS now;
