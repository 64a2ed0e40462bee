"""Methods whose local steps subtract gradients on the same records at an anchor."""
