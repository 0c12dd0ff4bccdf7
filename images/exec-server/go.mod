module agentic-rl/exec-server

go 1.24
