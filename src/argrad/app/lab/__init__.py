"""The tab Estimator lab: gradient estimators to play with."""
