"""Training of the generator: examples, what is asked of the decoder in a batch, and the trainer."""
