"""Offline work: requests from a file in OpenAI's batch format, answered without HTTP."""
