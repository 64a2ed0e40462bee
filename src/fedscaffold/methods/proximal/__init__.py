"""Methods whose local steps are pulled to a point, or solve a proximal step."""
