"""What people see: figures, progress, and objects in a terminal or a notebook."""
