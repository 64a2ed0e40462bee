"""The paper's Figure 1 and every statement of it, measured: one file per figure or claim."""
