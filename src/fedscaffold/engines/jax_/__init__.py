"""The JAX engine: any differentiable loss, on any device that JAX knows."""
