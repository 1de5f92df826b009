"""Benchmarks: whole workloads against servers, single steps of the engine, single kernels; each beside the floor that the machine sets."""
