"""Encodings that are known before the table is: from public bounds instead of statistics of the rows."""
