"""Figures, progress bars, and summaries of objects in a terminal or a notebook."""
