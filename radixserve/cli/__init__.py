"""The command line: ``radixserve generate`` and ``radixserve chat``."""
