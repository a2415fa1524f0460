"""One module a command of `ortolan`; the registry lists them."""
