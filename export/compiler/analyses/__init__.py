"""What follows for a whole graph from what its operators do."""
