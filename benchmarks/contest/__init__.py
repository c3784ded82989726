"""Models in a runtime and a precision, checked and then timed together."""
