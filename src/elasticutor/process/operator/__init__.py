"""A user's operator at work in a task: chunks, rows, and the states they see."""
