"""Jobs ready to run: the built-in GPT, Hugging Face configurations, presets, the user's files."""
