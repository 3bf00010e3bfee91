"""What only ranks on CPUs need, in tests, demos and rehearsals of a job: NCCL and RCCL do all of this themselves."""
