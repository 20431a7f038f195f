-- The functions stay as they are: they need nothing of this migration, and every release works with them.
SELECT 1;
