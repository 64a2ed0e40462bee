"""Clients that are distributions instead of tables: records are drawn when they are used."""
