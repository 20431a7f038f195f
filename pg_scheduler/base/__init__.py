"""What knows nothing of jobs: settings, texts, threads, addresses of servers, figures of a process."""
