"""Settings of tools and of the service that runs code for them. Light: pydantic only."""

from pydantic import Field

from agentic.settings import Settings


class CodeSandboxSettings(Settings):
    """The service behind `/run_code`. Every run has a sandbox of its own, made new and thrown away."""

    run_seconds: float = Field(10.0, gt=0)
    """Time of one run; what it printed until then is kept."""
    memory_mb: int = Field(256, ge=32)
    """Memory of all processes of a run together, files in memory included, in MiB."""
    max_processes: int = Field(32, ge=8)
    """Processes and threads of a run at once."""
    cpus: float = Field(1.0, gt=0)
    """CPU time per wall-clock time, in cores."""
    output_limit_bytes: int = Field(16_384, ge=1024)
    """Of standard output and of standard error each; the middle of more is left out."""
    code_limit_bytes: int = Field(65_536, ge=1024)
    """Of the code; more is refused."""
    concurrency: int = Field(4, ge=1)
    """Runs at the same time; others wait."""
    waiting: int = Field(1024, ge=0)
    """Runs that may wait; more are told to come again (429)."""
    libraries: tuple[str, ...] = ("sympy", "mpmath")
    """Packages of this environment that code can import beside the standard library, where sandboxes are local."""


class ToolSettings(Settings):
    """Tools of `tool_agent`. Unused by the other loops."""

    config: str | None = None
    """A tool configuration file of verl's form, absolute or relative to the directory that the command is started in;
    `None` is one tool, `code_interpreter`, at a code sandbox that the training step runs."""
    parser: str = "hermes"
    """verl's parser of tool calls, by the policy's family: `hermes` reads `<tool_call>{...}</tool_call>`."""
    max_turns: int = Field(4, ge=1)
    """Replies that the model may give to one task."""
    call_seconds: float = Field(60.0, gt=0)
    """How long one call of a tool may take; then the model is told so and goes on. Longer than `code.run_seconds`."""
    response_characters: int = Field(2000, ge=80)
    """What the model sees of a tool's response; the middle of a longer one is cut out."""
    response_limit_characters: int = Field(1_000_000, ge=1000)
    """A tool that returns more than this is broken: the model gets an error instead."""
    reward_weight: float = 0.0
    """Share of the sum of a trajectory's tool rewards that is added to its reward in training; 0 only records them."""
    success_reward: float = 0.0
    """Tool reward of a call of `code_interpreter` whose code ended without an error."""
    code: CodeSandboxSettings = CodeSandboxSettings()
    """The sandbox of `code_interpreter`."""
