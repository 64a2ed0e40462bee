"""What a table needs before its columns can be used: the format of text files, parts of dates."""
