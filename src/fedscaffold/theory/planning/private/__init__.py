"""Plans under a privacy budget."""
