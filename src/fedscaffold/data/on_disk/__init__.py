"""Encoded rows in a folder, memory-mapped, for tables that are larger than memory."""
