"""Run a script several times and compare: scaling, starts and bandwidth, proofs, rehearsals of faults."""
