"""The scheduler does with a document what Argo's controller does with it."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workflow_documents import RETRY, SUCCEEDED, ScriptedExecutor, failed, leaf, task, workflow

from workflows.local.document import read_document
from workflows.local.scheduler import OUTPUT_LIMIT_BYTES, AttemptResult, Outcome, Scheduler


def execute(document: dict[str, Any], executor: ScriptedExecutor) -> Outcome:
    return asyncio.run(Scheduler(read_document(document), executor, lambda node: None).run())


def phases(outcome: Outcome) -> dict[str, str]:
    return {node.name: node.phase for node in outcome.nodes}


def giving(**outputs: str) -> AttemptResult:
    return AttemptResult("Succeeded", 0, outputs=outputs)


def test_tasks_run_after_what_they_depend_on() -> None:
    tasks = [task("d", depends="b && c"), task("c", depends="a"), task("b", depends="a"), task("a")]
    executor = ScriptedExecutor()
    outcome = execute(workflow(tasks, [leaf(name) for name in "abcd"]), executor)
    assert outcome.status == "Succeeded"
    assert executor.order()[0] == "a"
    assert executor.order()[-1] == "d"


def test_a_transient_failure_is_tried_again_and_a_permanent_one_is_not() -> None:
    tasks = [task("a"), task("b", depends="a")]
    leaves = [leaf("a", retryStrategy=RETRY), leaf("b", retryStrategy=RETRY)]
    executor = ScriptedExecutor({"a": [failed(75), failed(137), SUCCEEDED], "b": [failed(78)]})
    outcome = execute(workflow(tasks, leaves), executor)
    assert executor.order() == ["a", "a", "a", "b"]
    assert [attempt.number for attempt in executor.attempts] == [1, 2, 3, 1]
    assert outcome.status == "Failed"


def test_retries_end_at_the_limit() -> None:
    executor = ScriptedExecutor({"a": [failed(75)]})
    outcome = execute(workflow([task("a")], [leaf("a", retryStrategy=RETRY)]), executor)
    assert len(executor.attempts) == 1 + 3
    assert phases(outcome) == {"a": "Failed"}


def test_without_a_retry_strategy_nothing_is_tried_again() -> None:
    executor = ScriptedExecutor({"a": [failed(75)]})
    execute(workflow([task("a")], [leaf("a")]), executor)
    assert len(executor.attempts) == 1


def test_the_exit_handler_runs_before_an_error_that_is_no_steps_is_raised() -> None:
    tasks = [task("list"), task("each", depends="list", withParam="{{tasks.list.outputs.parameters.items}}")]
    leaves = [leaf("list", outputs=["items"]), leaf("each"), leaf("tidy")]
    executor = ScriptedExecutor({"list": [giving(items="no JSON")]})
    with pytest.raises(ExceptionGroup):
        execute(workflow(tasks, leaves, onExit="tidy"), executor)
    assert executor.order() == ["list", "tidy"]


def test_policies_tell_failures_from_errors() -> None:
    errored = AttemptResult("Errored", None, "no image")
    for policy, result, attempts in [
        ("OnFailure", failed(1), 2),
        ("OnFailure", errored, 1),
        ("OnError", errored, 2),
        ("OnError", failed(1), 1),
    ]:
        executor = ScriptedExecutor({"a": [result]})
        strategy = {"limit": 1, "retryPolicy": policy, "backoff": {"duration": "0"}}
        execute(workflow([task("a")], [leaf("a", retryStrategy=strategy)]), executor)
        assert len(executor.attempts) == attempts


def test_what_follows_a_failure_is_omitted_and_the_exit_handler_still_runs() -> None:
    tasks = [task("a"), task("b", depends="a"), task("c", depends="b")]
    leaves = [leaf("a"), leaf("b"), leaf("c"), leaf("tidy", "echo {{workflow.status}}")]
    executor = ScriptedExecutor({"a": [failed(78)]})
    outcome = execute(workflow(tasks, leaves, onExit="tidy"), executor)
    assert phases(outcome) == {"a": "Failed", "b": "Omitted", "c": "Omitted", "tidy": "Succeeded"}
    assert executor.attempts[-1].scope["workflow.status"] == "Failed"


def test_a_task_may_depend_on_a_failure() -> None:
    tasks = [task("a"), task("mend", depends="a.Failed"), task("on", depends="a.Succeeded || mend")]
    executor = ScriptedExecutor({"a": [failed(1)]})
    outcome = execute(workflow(tasks, [leaf(n) for n in ("a", "mend", "on")], dag={"failFast": False}), executor)
    assert executor.order() == ["a", "mend", "on"]
    assert outcome.status == "Succeeded"


def test_a_skipped_task_counts_as_done_and_its_consumers_use_their_defaults() -> None:
    tasks = [
        task("a", when="'{{workflow.parameters.start}}' == 'a'"),
        task("b", depends="a", arguments={"x": "{{tasks.a.outputs.parameters.x}}"}),
    ]
    leaves = [leaf("a", outputs=["x"]), leaf("b", inputs=[{"name": "x", "default": "newest"}])]
    executor = ScriptedExecutor()
    outcome = execute(workflow(tasks, leaves, parameters={"start": "b"}), executor)
    assert phases(outcome) == {"a": "Skipped", "b": "Succeeded"}
    assert executor.attempts[0].inputs == {"x": "newest"}


def test_a_consumer_without_a_default_errs_when_its_producer_is_skipped() -> None:
    tasks = [
        task("a", when="1 == 2"),
        task("b", depends="a", arguments={"x": "{{tasks.a.outputs.parameters.x}}"}),
    ]
    outcome = execute(workflow(tasks, [leaf("a", outputs=["x"]), leaf("b", inputs=["x"])]), ScriptedExecutor())
    assert phases(outcome) == {"a": "Skipped", "b": "Errored"}
    assert outcome.status == "Failed"


def fan_out(items: str, plays: Sequence[Any] = (SUCCEEDED,), **spec: Any) -> tuple[Outcome, ScriptedExecutor]:
    tasks = [
        task("list"),
        task(
            "each",
            depends="list",
            withParam="{{tasks.list.outputs.parameters.items}}",
            arguments={"x": "{{item}}"},
        ),
        task("sum", depends="each", arguments={"all": "{{tasks.each.outputs.parameters.y}}"}),
    ]
    leaves = [leaf("list", outputs=["items"]), leaf("each", inputs=["x"], outputs=["y"]), leaf("sum", inputs=["all"])]
    executor = ScriptedExecutor({"list": [giving(items=items)], "each": plays})
    return execute(workflow(tasks, leaves, **spec), executor), executor


@given(st.lists(st.one_of(st.integers(), st.text(max_size=5), st.booleans()), max_size=6))
def test_a_fan_out_runs_once_for_each_item_and_gathers_outputs_in_order(items: list[Any]) -> None:
    outcome, executor = fan_out(json.dumps(items), [lambda attempt: giving(y=json.dumps(attempt.inputs["x"]))])
    texts = [item if isinstance(item, str) else json.dumps(item) for item in items]
    assert outcome.status == "Succeeded"
    assert [a.inputs["x"] for a in executor.attempts if a.template.name == "each"] == texts
    assert json.loads(executor.attempts[-1].inputs["all"]) == texts


def test_a_failed_item_fails_the_fan_out_after_the_others_ended() -> None:
    outcome, executor = fan_out(
        "[1, 2, 3]", [lambda attempt: failed(78) if attempt.inputs["x"] == "2" else giving(y="0")]
    )
    assert phases(outcome)["each"] == "Failed"
    assert phases(outcome)["sum"] == "Omitted"
    assert sum(attempt.template.name == "each" for attempt in executor.attempts) == 3


def test_items_that_are_objects_give_their_fields() -> None:
    tasks = [task("a", withItems=[{"k": "v", "n": 1}], arguments={"x": "{{item.k}}-{{item.n}}"})]
    executor = ScriptedExecutor()
    execute(workflow(tasks, [leaf("a", inputs=["x"])]), executor)
    assert executor.attempts[0].inputs == {"x": "v-1"}


def test_parallelism_bounds_what_runs_at_once() -> None:
    _, executor = fan_out("[1, 2, 3, 4, 5]", [giving(y="0")], parallelism=2)
    assert executor.most_running == 2


def test_an_output_that_argo_would_not_hold_is_an_error() -> None:
    executor = ScriptedExecutor({"a": [giving(x="y" * (OUTPUT_LIMIT_BYTES + 1))]})
    outcome = execute(workflow([task("a")], [leaf("a", outputs=["x"])]), executor)
    assert phases(outcome) == {"a": "Errored"}
    assert "256" in outcome.nodes[0].message or str(OUTPUT_LIMIT_BYTES) in outcome.nodes[0].message


def test_values_are_never_substituted_twice() -> None:
    tasks = [task("a"), task("b", depends="a", arguments={"x": "{{tasks.a.outputs.parameters.x}}"})]
    executor = ScriptedExecutor({"a": [giving(x="{{workflow.name}}")]})
    execute(workflow(tasks, [leaf("a", outputs=["x"]), leaf("b", inputs=["x"])]), executor)
    assert executor.attempts[1].inputs == {"x": "{{workflow.name}}"}


def test_the_workflows_deadline_ends_it_and_runs_the_exit_handler() -> None:
    class Slow(ScriptedExecutor):
        async def execute(self, attempt: Any) -> AttemptResult:
            if attempt.node == "a":
                await asyncio.sleep(30)
            return await super().execute(attempt)

    document = workflow([task("a")], [leaf("a"), leaf("tidy")], onExit="tidy", activeDeadlineSeconds=1)
    executor = Slow()
    outcome = execute(document, executor)
    assert outcome.status == "Failed"
    assert executor.order() == ["tidy"]
