"""Clients on many machines, by Ray."""
