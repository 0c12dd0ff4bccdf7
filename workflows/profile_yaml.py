"""YAML without its silent repair: a key that stands twice in one mapping is an error, not the last one wins."""

from typing import Any

import yaml


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader, strict on keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(problem=f"{key} stands twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def load(text: str) -> Any:
    """The document's content.

    Raises:
        yaml.YAMLError: no YAML, or a key that stands twice.
    """
    return yaml.load(text, Loader=_StrictLoader)
