"""From a dataset to a checkpoint: options, the loop, teachers, distortions."""
