"""Finished Workflows as Argo's controller leaves them, in miniature: the nodes of a DAG with retries and a fan-out."""

from typing import Any

BEGAN, ENDED = "2026-01-01T10:00:00Z", "2026-01-01T10:02:05Z"


class ArgoWorkflow:
    """Builds a status node by node; ids are the nodes' names."""

    def __init__(self, name: str, document: dict[str, Any], phase: str = "Failed") -> None:
        self.name = name
        self.nodes: dict[str, dict[str, Any]] = {}
        labels = {"agentic-rl/run": "first", "workflows.argoproj.io/completed": "true"}
        self.body: dict[str, Any] = {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Workflow",
            "metadata": {"name": name, "namespace": "rl", "labels": labels, "resourceVersion": "7"},
            "spec": {**document["spec"], "shutdown": "Stop"},
            "status": {
                "phase": phase,
                "message": "child failed",
                "startedAt": BEGAN,
                "finishedAt": ENDED,
                "conditions": [{"type": "PodRunning", "status": "False"}, {"type": "Completed", "status": "True"}],
                "nodes": self.nodes,
            },
        }
        self.add(name, "DAG", phase, template="main")

    def add(self, name: str, kind: str, phase: str, *, template: str = "", **more: Any) -> str:
        """A node; inside of the DAG unless it is one."""
        self.nodes[name] = {
            "id": name,
            "name": name,
            "displayName": name,
            "type": kind,
            "phase": phase,
            "templateName": template,
            "startedAt": BEGAN,
            "finishedAt": ENDED if phase not in {"Running", "Pending"} else None,
            "children": [],
            **({} if kind == "DAG" else {"boundaryID": self.name}),
            **more,
        }
        return name

    def step(self, name: str, *codes: int, after: tuple[str, ...] = (), phase: str = "", item: str = "") -> str:
        """A step with an attempt for each exit code; its last pod, to hang others on."""
        full = f"{self.name}.{name}{item}"
        own = phase or ("Succeeded" if codes and codes[-1] == 0 else "Failed")
        self.add(full, "Retry", own, template=name)
        for before in after:
            self.nodes[before]["children"].append(full)
        for index, code in enumerate(codes):
            pod = self.add(
                f"{full}({index})",
                "Pod",
                "Failed" if code else "Succeeded",
                template=name,
                nodeFlag={"retried": True},
                outputs={"exitCode": str(code), "parameters": [{"name": "summary", "value": f"{name} is done"}]},
                message=f"main: Error (exit code {code})" if code else "",
            )
            self.nodes[full]["children"].append(pod)
        return f"{full}({len(codes) - 1})"

    def omitted(self, name: str, *after: str) -> str:
        """A step that something before it kept from running."""
        full = self.add(f"{self.name}.{name}", "Skipped", "Omitted", template=name, message="omitted")
        for before in after:
            self.nodes[before]["children"].append(full)
        return full


def failed_fan_out(document: dict[str, Any]) -> ArgoWorkflow:
    """One of two shards failed after a retry; the exit handler ran."""
    made = ArgoWorkflow("agentic-rl-first", document)
    first = made.step("preflight", 0)
    made.nodes["agentic-rl-first"]["children"] = ["agentic-rl-first.preflight"]
    data = made.step("download-data", 75, 0, after=(first,))
    model = made.step("download-model", 0, after=(data,))
    group = made.add("agentic-rl-first.build-images", "TaskGroup", "Failed", template="build-images")
    made.nodes[data]["children"].append(group)
    pods = [
        made.step("build-images", *codes, after=(group,), item=f"({index}:{index}/2)")
        for index, codes in enumerate([(0,), (75, 78)])
    ]
    last = made.omitted("launch-cluster", model, *pods)
    for name in ("train", "evaluate", "report"):
        last = made.omitted(name, last)
    made.nodes["agentic-rl-first"]["outboundNodes"] = [last]
    made.step("onExit", 0)
    for key in ("agentic-rl-first.onExit", "agentic-rl-first.onExit(0)"):
        made.nodes[key] |= {"templateName": "cleanup", "boundaryID": ""}
    return made
