"""Models from the `config.json` of Hugging Face's transformers."""
