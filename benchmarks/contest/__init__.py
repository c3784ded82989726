"""The contest: contestants, each a model in a runtime and a precision, checked and then timed together."""
