"""What is known of each operator: which inputs it needs, how it moves elements, its cost and its kernel in float64."""
