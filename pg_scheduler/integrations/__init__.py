"""Connect pg_scheduler to other libraries, one module for each; nothing else imports those libraries."""
