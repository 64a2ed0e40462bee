"""Tables and figures from traces."""
