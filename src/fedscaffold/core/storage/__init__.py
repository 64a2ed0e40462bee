"""Files: written completely or not at all, arrays in archives without pickles or on disk; the memory limit."""
