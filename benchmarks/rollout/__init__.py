"""What a rollout costs: trials a second, processor time, memory and the event loop's lag, beside bare Harbor."""
