"""POLAR: online polarization in 22 languages (SemEval-2026 Task 9), and the system of Macko et al.

Data, augmentation, a quantised language model with adapters, predictions and their scores.
"""

import logging

# that faster kernels could be downloaded: it says so when it is imported
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
