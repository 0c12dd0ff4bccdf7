"""Walks the document as Argo's controller does: order, `when`, fan-out, retries, deadlines, the exit handler.

The scheduler decides; an `Executor` runs one attempt of one command. Nothing here starts a process, reads a file or
prints. Semantics that differ between Argo's versions follow 4.0.7: an argument that only refers to an output of a task
that was skipped gives way to the input's default.
"""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from workflows.local import expressions
from workflows.local.document import Dag, Document, Parameter, RetryStrategy, Task, Template, ancestors, seconds_of
from workflows.local.substitution import UnresolvedError, is_only_reference, substitute

OUTPUT_LIMIT_BYTES = 256 * 1024
"""What Argo accepts as one output parameter."""

FINAL = frozenset(["Succeeded", "Failed", "Errored", "Skipped", "Omitted"])
"""Phases that a node never leaves."""


@dataclass
class Node:
    """One step, or one item of a fan-out, as an onlooker sees it."""

    name: str
    template: str
    phase: str = "Waiting"
    attempt: int = 0
    started: float | None = None
    ended: float | None = None
    message: str = ""
    exit_code: int | None = None


@dataclass(frozen=True)
class Attempt:
    """One execution of a leaf: the template, its resolved inputs and what else may be substituted."""

    node: str
    number: int
    template: Template
    inputs: Mapping[str, str]
    scope: Mapping[str, str]


@dataclass(frozen=True)
class AttemptResult:
    """How an attempt ended; `exit_code` is `None` when the command never ran to an end of its own."""

    status: str
    exit_code: int | None = None
    message: str = ""
    outputs: Mapping[str, str] = field(default_factory=dict)


class Executor(Protocol):
    """Runs commands."""

    async def execute(self, attempt: Attempt) -> AttemptResult:
        """Run one attempt to its end. Never raises for a failing command; cancelling ends the command first."""


@dataclass(frozen=True)
class Result:
    """How a task ended."""

    status: str
    outputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How the workflow ended."""

    status: str
    interrupted: bool
    nodes: list[Node]


class Scheduler:
    """Executes one document once."""

    def __init__(self, document: Document, executor: Executor, observe: Callable[[Node], None]) -> None:
        self.document = document
        self.executor = executor
        self.observe = observe
        self.nodes: list[Node] = []
        self._slots = asyncio.Semaphore(document.spec.parallelism or 1_000_000)
        self._globals = {
            "workflow.name": document.name,
            "workflow.uid": "local",
            "workflow.namespace": "local",
            "workflow.status": "Running",
            "workflow.duration": "0",
        }
        for parameter in document.spec.arguments.parameters:
            self._globals[f"workflow.parameters.{parameter.name}"] = parameter.initial or ""

    async def run(self) -> Outcome:
        """Run the entrypoint, then the exit handler, whatever happened; a cancellation counts as an interruption.

        An error that is nobody's step (a list to fan out over that is no JSON, say) is raised after the exit handler.
        """
        spec, started = self.document.spec, time.monotonic()
        interrupted, broken = False, None
        try:
            async with asyncio.timeout(spec.active_deadline_seconds):
                status = (await self._template(spec.entrypoint, {})).status
        except TimeoutError:
            status = "Failed"
        except asyncio.CancelledError:
            status, interrupted = "Failed", True
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
        except ExceptionGroup as error:
            status, broken = "Failed", error
        self._close_open_nodes(interrupted)
        self._globals |= {"workflow.status": status, "workflow.duration": f"{time.monotonic() - started:.0f}"}
        if spec.on_exit is not None:
            await self._template(spec.on_exit, {})
        if broken is not None:
            raise broken
        return Outcome(status, interrupted, self.nodes)

    def _close_open_nodes(self, interrupted: bool) -> None:
        for node in self.nodes:
            if node.phase not in FINAL:
                message = "interrupted" if interrupted else "the workflow ran past its deadline"
                self._set(node, phase="Failed" if node.attempt else "Omitted", message=message, ended=time.time())

    def _set(self, node: Node, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(node, name, value)
        self.observe(node)

    def _add(self, name: str, template: str) -> Node:
        node = Node(name, template)
        self.nodes.append(node)
        self.observe(node)
        return node

    async def _template(self, name: str, arguments: Mapping[str, str], node: Node | None = None) -> Result:
        template = self.document.templates[name]
        inputs: dict[str, str] = {}
        for parameter in template.inputs.parameters:
            value = arguments.get(parameter.name, parameter.initial)
            if value is None:
                raise UnresolvedError(f"{name}.{parameter.name}")
            inputs[parameter.name] = value if parameter.name in arguments else substitute(value, self._globals)
        scope = self._globals | {f"inputs.parameters.{key}": value for key, value in inputs.items()}
        if template.dag is not None:
            return await self._dag(template.dag, scope)
        return await self._leaf(template, inputs, scope, node or self._add(name, name))

    async def _leaf(
        self, template: Template, inputs: Mapping[str, str], scope: Mapping[str, str], node: Node
    ) -> Result:
        retry = template.retry_strategy or RetryStrategy()
        waits = Waits(retry)
        first = time.monotonic()
        while True:
            async with self._slots:
                number = node.attempt + 1
                self._set(node, phase="Running", attempt=number, started=node.started or time.time(), message="")
                began = time.monotonic()
                result = _bounded(await self.executor.execute(Attempt(node.name, number, template, inputs, scope)))
            helps = _wants_retry(retry, result, Tried(number - 1, time.monotonic() - began))
            wait = waits.next_seconds(time.monotonic() - first)
            if result.status == "Succeeded" or number > retry.limit or wait is None or not helps:
                self._set(
                    node, phase=result.status, ended=time.time(), message=result.message, exit_code=result.exit_code
                )
                return Result(result.status, result.outputs)
            self._set(node, phase="Retrying", message=f"{result.message}; again in {wait:g} s")
            await asyncio.sleep(wait)

    async def _dag(self, dag: Dag, scope: Mapping[str, str]) -> Result:
        run = DagRun(dag, dict(scope))
        nodes = {task.name: self._add(task.name, task.template) for task in dag.tasks}
        finished = {task.name: asyncio.Event() for task in dag.tasks}

        async def follow(task: Task) -> None:
            for parent in run.parents(task):
                await finished[parent].wait()
            if not run.is_ready(task):
                run.record(task, Result("Omitted"))
                self._set(nodes[task.name], phase="Omitted", message="a step before it failed")
            else:
                run.record(task, await self._task(task, run.scope, nodes[task.name]))
            finished[task.name].set()

        await _together([follow(task) for task in dag.tasks])
        return Result(run.status())

    async def _task(self, task: Task, scope: Mapping[str, str], node: Node) -> Result:
        try:
            if task.when is not None and not expressions.is_due(substitute(task.when, scope)):
                self._set(node, phase="Skipped", message="not asked for")
                return Result("Skipped")
            items = task.with_items
            if task.with_param is not None:
                items = json.loads(substitute(task.with_param, scope))
            if items is None:
                return await self._template(task.template, self._arguments(task, scope), node)
            return await self._fan_out(task, items, scope, node)
        except UnresolvedError as error:
            self._set(node, phase="Errored", message=f"{{{{{error}}}}} has no value", ended=time.time())
            return Result("Errored")

    def _arguments(self, task: Task, scope: Mapping[str, str]) -> dict[str, str]:
        target = self.document.templates[task.template]
        with_default = {p.name for p in target.inputs.parameters if p.initial is not None}
        arguments: dict[str, str] = {}
        for argument in task.arguments.parameters:
            try:
                arguments[argument.name] = substitute(argument.value or "", scope)
            except UnresolvedError:
                if not (is_only_reference(argument.value or "") and argument.name in with_default):
                    raise
        return arguments

    async def _fan_out(self, task: Task, items: list[Any], scope: Mapping[str, str], group: Node) -> Result:
        calls: list[Coroutine[Any, Any, Result]] = []
        started = time.time()
        self._set(group, phase="Running", started=started, attempt=1)
        for index, item in enumerate(items):
            text = item if isinstance(item, str) else json.dumps(item)
            fields = {f"item.{key}": str(value) for key, value in item.items()} if isinstance(item, dict) else {}
            arguments = self._arguments(task, {**scope, "item": text, **fields})
            name = f"{task.name}-{index}"
            calls.append(self._template(task.template, arguments, self._add(name, task.template)))
        results = await _together(calls)
        bad = sum(result.status != "Succeeded" for result in results)
        status = "Failed" if bad else "Succeeded"
        message = f"{bad} of {len(items)} failed" if bad else f"{len(items)} of {len(items)}"
        self._set(group, phase=status, ended=time.time(), message=message)
        return Result(status, _aggregate(results, self.document.templates[task.template].outputs.parameters))


class DagRun:
    """State of one DAG: the tasks' results and the scope that grows with their outputs."""

    def __init__(self, dag: Dag, scope: dict[str, str]) -> None:
        self.dag = dag
        self.scope = scope
        self.statuses: dict[str, str] = {}
        self._ancestors = ancestors(dag)

    def parents(self, task: Task) -> set[str]:
        """The tasks that must have ended before this one is looked at."""
        return expressions.task_names(task.depends, [t.name for t in self.dag.tasks]) if task.depends else set()

    def is_ready(self, task: Task) -> bool:
        """Whether the task runs, its parents having ended."""
        if self.dag.fail_fast and any(status in {"Failed", "Errored"} for status in self.statuses.values()):
            return bool(task.depends) and "." in task.depends and expressions.is_satisfied(task.depends, self.statuses)
        return not task.depends or expressions.is_satisfied(task.depends, self.statuses)

    def record(self, task: Task, result: Result) -> None:
        """Keep how a task ended."""
        self.statuses[task.name] = result.status
        self.scope[f"tasks.{task.name}.status"] = result.status
        for name, value in result.outputs.items():
            self.scope[f"tasks.{task.name}.outputs.parameters.{name}"] = value

    def status(self) -> str:
        """The DAG's own result: decided by its last tasks, an omitted one by what came before it."""
        followed = {parent for task in self.dag.tasks for parent in self.parents(task)}
        for task in self.dag.tasks:
            if task.name in followed:
                continue
            branch = {task.name}
            if self.statuses[task.name] == "Omitted":
                branch |= self._ancestors[task.name]
            if any(self.statuses[name] in {"Failed", "Errored"} for name in branch):
                return "Failed"
        return "Succeeded"


class Waits:
    """The pauses between attempts: exponential, capped, and over when `maxDuration` is."""

    def __init__(self, retry: RetryStrategy) -> None:
        self._next = seconds_of(retry.backoff.duration)
        self._factor = float(retry.backoff.factor)
        self._cap = seconds_of(retry.backoff.cap) if retry.backoff.cap else float("inf")
        self._longest = seconds_of(retry.backoff.max_duration) if retry.backoff.max_duration else float("inf")

    def next_seconds(self, spent_seconds: float) -> float | None:
        """The next pause, or `None` when no time is left for another attempt."""
        wait = min(self._next, self._cap)
        self._next *= self._factor
        return wait if spent_seconds + wait <= self._longest else None


@dataclass(frozen=True)
class Tried:
    """The last attempt's place and length, which a retry expression may ask for."""

    retries: int
    """How many attempts were retries, this one included."""
    seconds: float


def _wants_retry(retry: RetryStrategy, result: AttemptResult, last: Tried) -> bool:
    if retry.retry_policy == "OnFailure" and result.status != "Failed":
        return False
    if retry.retry_policy == "OnError" and result.status != "Errored":
        return False
    if retry.expression is None:
        return True
    known = {
        "exitCode": str(-1 if result.exit_code is None else result.exit_code),
        "status": "Error" if result.status == "Errored" else result.status,
        "message": result.message,
        "duration": f"{last.seconds:g}",
        "retries": str(last.retries),
    }
    return expressions.should_retry(retry.expression, known)


def is_worth_retrying(retry: RetryStrategy | None, node: Node) -> bool:
    """Whether the node's last failure was of the kind that its retry strategy repeats."""
    result = AttemptResult(node.phase, node.exit_code, node.message)
    last = Tried(max(0, node.attempt - 1), (node.ended or 0.0) - (node.started or 0.0))
    return retry is not None and _wants_retry(retry, result, last)


def _bounded(result: AttemptResult) -> AttemptResult:
    for name, value in result.outputs.items():
        if len(value.encode()) > OUTPUT_LIMIT_BYTES:
            message = (
                f"output '{name}' has {len(value.encode())} bytes, Argo accepts {OUTPUT_LIMIT_BYTES}: write a file"
            )
            return AttemptResult("Errored", result.exit_code, message)
    return result


def _aggregate(results: list[Result], outputs: list[Parameter]) -> dict[str, str]:
    def parsed(text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            return text

    names = [output.name for output in outputs]
    return {name: json.dumps([parsed(r.outputs[name]) for r in results if name in r.outputs]) for name in names}


async def _together[T](calls: list[Coroutine[Any, Any, T]]) -> list[T]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call) for call in calls]
    return [task.result() for task in tasks]
