"""The tiny policy of the demo: tokenizer, network, demonstrations, supervised warm start."""
