"""scikit-learn's own tests of Ridge and LogisticRegression, run on the federated estimators."""
