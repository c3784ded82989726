"""Accuracy, calibration, rejection, the report."""
