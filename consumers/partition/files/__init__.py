"""Tables' files as a leader keeps them: what is decided gets its manifests, once, in order."""
