"""What a table is refused for, and what is only warned of."""
