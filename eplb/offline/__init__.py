"""Planning from a trace without a daemon: how an engine dispatches, what is held out, how many slots pay, what to expect."""
