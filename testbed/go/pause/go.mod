module testbed/pause

go 1.24
