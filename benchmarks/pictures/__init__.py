"""Pictures as people hand them in, made from a digit's ink: what preprocessing is judged on."""
