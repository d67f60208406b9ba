"""A discrete-event model of one synchronous step on a cluster: what servers, backup workers and links make of it."""
