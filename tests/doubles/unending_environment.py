"""A Harbor environment as others write them: it has no way to end what the agent left running."""

from process_environment import ProcessEnvironment


class UnendingEnvironment(ProcessEnvironment):
    """Fakes the lack; all else is its parent's."""

    end_commands = None
