"""`python -m agentic.tasks`: the name that people know; making and judging tasks is the work of `agentic.authoring`."""

if __name__ == "__main__":
    from agentic.authoring.command import main

    raise SystemExit(main())
