"""Call the functions of jobs in the event loop, in threads and in child processes, with time limits."""
