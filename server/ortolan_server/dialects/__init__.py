"""The dialects of the completions API: declared data and renderers, one module each."""
