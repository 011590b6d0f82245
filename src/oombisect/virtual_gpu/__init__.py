"""The virtual GPU: the real CUDA build of PyTorch on a stand-in for the CUDA libraries, with no GPU.

Device memory is address space without backing, kernels do nothing, every allocation is accounted.
See docs/virtual-gpu.md.
"""
