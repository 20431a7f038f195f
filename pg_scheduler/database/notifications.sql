-- name: free_queue
-- route: reserved
-- Free the part of the server's queue of notifications that all sessions have read; return how much of it is in use.
SELECT pg_notification_queue_usage();
