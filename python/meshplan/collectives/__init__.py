"""Measured collectives: output of nccl-tests and RCCL-tests of every vintage, and tables."""
