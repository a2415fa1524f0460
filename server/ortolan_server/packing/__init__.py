"""Makes one archive of the program and a bundle, for machines that have no network."""
