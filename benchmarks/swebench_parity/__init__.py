"""Our verdicts on SWE-bench instances beside those of the `swebench` package, on instances that are made here."""
