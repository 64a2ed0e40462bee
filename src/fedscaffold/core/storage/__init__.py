"""Files: written completely or not at all, arrays in archives without pickles, arrays on disk."""
