"""One file per figure or claim of the paper."""
