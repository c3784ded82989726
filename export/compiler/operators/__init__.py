"""What is known of each operator: what it reads, moves and costs, and its answer in double."""
