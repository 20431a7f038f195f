"""What the words mean that people read: one module for each word, and its SQL."""
