"""Any loss that JAX can differentiate."""
