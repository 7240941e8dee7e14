"""The stock models of transformers: decoders, encoders like BERT, and encoder-decoders like T5."""
