"""Linear stochastic approximation: clients hold linear systems or Markov chains; solves Σ w_c (A_c θ − b_c) = 0."""
