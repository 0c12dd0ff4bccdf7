"""Stands for SWE-agent, which is on no registry: takes Harbor's command line and asks as SWE-agent does.

Its own file in the sandbox is called `sweagent`. What it has of SWE-agent is what a proxy sees of it: the two ways to
act (a tool call, or a fenced block after a thought), observations that are cut, history processors that edit what was
said before (old observations left out, cache marks that move), a reply that cannot be parsed answered by a question
that is forgotten afterwards, and a submission. Only the standard library and PyYAML, as in the image of the test.
"""

import argparse
import copy
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import yaml

FENCE = re.compile(r"```\n(.*?)\n```", re.DOTALL)
ASK_AGAIN = "Your output was not formatted correctly. Act exactly once."
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "runs the given command directly in bash",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
SUBMIT = {
    "type": "function",
    "function": {
        "name": "submit",
        "description": "submits the current file",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}


class FormatError(Exception):
    """A reply that does not act exactly once."""


class Client:
    def __init__(self, options, agent, folder):
        self.url = options.api_base + "/chat/completions"
        self.model = options.name.removeprefix("openai/")
        self.folder = folder
        self.calls_tools = agent["tools"]["parse_function"]["type"] == "function_calling"
        self.longest = agent["templates"]["max_observation_length"]
        self.processors = agent["history_processors"]
        self.history = [{"role": "system", "content": agent["templates"]["system_template"], "kind": "system"}]

    def work(self, problem):
        self.history.append({"role": "user", "content": f"<pr>\n{problem}\n</pr>", "kind": "observation"})
        while True:
            reply, action = self.act()
            calls = reply.get("tool_calls")
            self.history.append({"role": "assistant", "content": reply.get("content") or "", "tool_calls": calls})
            if action == "submit":
                return
            text = self.observation(action)
            role = {"role": "tool", "tool_call_id": calls[0]["id"]} if calls else {"role": "user"}
            self.history.append({**role, "content": text, "kind": "observation"})

    def act(self):
        """Ask; a reply that cannot be parsed is shown once more, in a history that is not kept."""
        history = self.processed()
        for _ in range(3):
            reply = self.ask(history)
            try:
                return reply, self.parse(reply)
            except FormatError:
                said = {"role": "assistant", "content": reply.get("content") or ""}
                history = [*history, said, {"role": "user", "content": ASK_AGAIN}]
        raise SystemExit("three replies that cannot be parsed")

    def parse(self, reply):
        if self.calls_tools:
            calls = reply.get("tool_calls") or []
            if len(calls) != 1:
                raise FormatError
            function = calls[0]["function"]
            return "submit" if function["name"] == "submit" else json.loads(function["arguments"])["command"]
        found = FENCE.findall(reply.get("content") or "")
        if not found:
            raise FormatError
        return found[-1].strip()

    def observation(self, command):
        done = subprocess.run(command, shell=True, cwd=self.folder, capture_output=True, text=True, check=False)
        text = done.stdout + done.stderr
        if not text.strip():
            return "Your command ran successfully and did not produce any output."
        if len(text) <= self.longest:
            return f"OBSERVATION:\n{text}"
        left_out = len(text) - self.longest
        note = f"<NOTE>Observations hold at most {self.longest} characters. {left_out} characters were elided.</NOTE>"
        return f"Observation: {text[: self.longest]}<response clipped>{note}"

    def processed(self):
        history = copy.deepcopy(self.history)
        for processor in self.processors:
            if processor["type"] == "last_n_observations":
                leave_out(history, processor["n"])
            if processor["type"] == "cache_control":
                mark(history, processor["last_n_messages"])
        return history

    def ask(self, history):
        kept = ("role", "content", "tool_calls", "tool_call_id", "cache_control")
        messages = [{key: entry[key] for key in kept if entry.get(key) is not None} for entry in history]
        body = {"model": self.model, "messages": messages, "temperature": 0.0, "top_p": 1.0}
        if self.calls_tools:
            body["tools"] = [BASH, SUBMIT]
        headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["choices"][0]["message"]


def leave_out(history, count):
    """All observations but the first, which is the task, and the last ones."""
    observations = [entry for entry in history if entry.get("kind") == "observation"]
    for entry in observations[1 : max(0, len(observations) - count)]:
        entry["content"] = f"Old environment output: ({len(entry['content'].splitlines())} lines omitted)"


def mark(history, count):
    """The last messages of others than the model, as blocks with a mark; what was marked before stays a list."""
    marked = [entry for entry in history if entry["role"] in ("user", "tool")]
    for entry in marked:
        entry["content"] = [{"type": "text", "text": entry["content"]}]
    for entry in marked[-count:]:
        holder = entry if entry["role"] == "tool" else entry["content"][0]
        holder["cache_control"] = {"type": "ephemeral"}


def main():
    parser = argparse.ArgumentParser(prog="sweagent run")
    parser.add_argument("--agent.model.name", dest="name", required=True)
    parser.add_argument("--agent.model.api_base", dest="api_base", required=True)
    parser.add_argument("--agent.model.max_input_tokens", dest="tokens", type=int, required=True)
    for limit in ("per_instance_cost_limit", "total_cost_limit"):
        parser.add_argument(f"--agent.model.{limit}", dest=limit, type=float, required=True)
    parser.add_argument("--problem_statement.path", dest="problem", type=Path, required=True)
    parser.add_argument("--output_dir", dest="output", type=Path, required=True)
    parser.add_argument("--env.repo.repo_name", dest="folder", type=Path, required=True)
    parser.add_argument("--env.repo.type", dest="repo", choices=["preexisting"], required=True)
    parser.add_argument("--env.deployment.type", dest="deployment", choices=["local"], required=True)
    parser.add_argument("--config", type=Path, required=True)
    if sys.argv[1:2] != ["run"]:
        parser.error("the command is run")
    options = parser.parse_args(sys.argv[2:])
    agent = yaml.safe_load(options.config.read_text())["agent"]
    client = Client(options, agent, options.folder)
    client.work(options.problem.read_text())
    options.output.mkdir(parents=True)
    (options.output / "task.traj").write_text(json.dumps({"history": client.history, "info": {}, "trajectory": []}))


if __name__ == "__main__":
    main()
