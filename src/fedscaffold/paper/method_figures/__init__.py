"""Figures and tables of the pages about single methods and models: one file per page."""
