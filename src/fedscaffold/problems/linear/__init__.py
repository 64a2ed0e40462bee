"""Linear stochastic approximation, Σ w_c (A_c θ − b_c) = 0: clients hold linear systems or Markov chains."""
