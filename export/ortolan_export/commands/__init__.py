"""The exporter's commands, one module each; the server's registry lists them."""
