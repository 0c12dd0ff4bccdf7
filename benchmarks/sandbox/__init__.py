"""What sandboxes on a real API server cost, beside other ways to the same pods; `make bench-sandbox`."""
