"""The paper's open question: can Scaffold need √κ communications and keep its linear speed-up?"""
