"""A Flower app: a small PyTorch network on handwritten digits."""
