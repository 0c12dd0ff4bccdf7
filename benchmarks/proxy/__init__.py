"""What the ProxyServer costs, beside rllm-model-gateway and beside no proxy at all: `python -m benchmarks.proxy`."""
