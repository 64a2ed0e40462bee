"""What a run will reach: covariance and bias on the plateau, and the curve that leads there."""
