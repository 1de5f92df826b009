"""The caller's schema as a document: its resources, anchors and subschemas, and what a reference means.

Only places where a draft has subschemas are searched for identifiers, so an ``$id`` inside an ``enum`` is a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urljoin, urlsplit

from radixserve.grammar.schema import dialect
from radixserve.grammar.schema.dialect import Draft
from radixserve.grammar.schema.json_values import escape_token
from radixserve.grammar.schema.refusal import INVALID, UNSUPPORTED, Origin, SchemaRefused


@dataclass(frozen=True, eq=False, slots=True)
class Resource:
    """A schema with an identity of its own: the root, or a subschema that has an ``$id``.

    ``anchors`` and ``dynamic_anchors``: name -> path. ``recursive``: it has ``$recursiveAnchor: true``.
    """

    uri: str
    path: str
    draft: Draft
    recursive: bool
    anchors: dict[str, str] = field(default_factory=dict)
    dynamic_anchors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """A subschema. There is one object for each ``path`` of a document, so nodes are compared by identity."""

    resource: Resource
    path: str
    schema: bool | dict[str, object]

    def origin(self, keyword: str) -> Origin:
        """Where ``keyword`` of this subschema stands."""
        return Origin(keyword, f"{self.path}/{escape_token(keyword)}")


class Document:
    """Index of a schema. ``draft``: what it is read as where no ``$schema`` says. ``dynamic``: some reference depends on how it was
    reached.
    """

    def __init__(self, schema: object, draft: Draft = Draft.MIXED) -> None:
        self.dynamic = False
        self._values: dict[str, object] = {"#": schema}
        self._nodes: dict[str, Node] = {}
        self._by_uri: dict[str, Resource] = {}
        self._home: dict[str, Resource] = {}
        self._index(schema, draft)
        self.root = self.node("#")

    def node(self, path: str) -> Node:
        """The subschema at ``path``; refuses what is not a schema."""
        found = self._nodes.get(path)
        if found is None:
            value = self._values[path]
            if not isinstance(value, (bool, dict)):
                raise SchemaRefused(Origin("schema", path), "a schema is an object or a boolean", INVALID)
            found = self._nodes[path] = Node(self._home_of(path), path, value)
        return found

    def child(self, node: Node, *tokens: str | int) -> Node:
        """The subschema under ``node``, by its keys and indices."""
        path, value = node.path, self._values[node.path]
        for token in tokens:
            value = value[token]  # type: ignore[index]
            path = f"{path}/{escape_token(str(token))}"
            self._values[path] = value
        return self.node(path)

    def constant(self, value: object, path: str) -> Node:
        """A schema of our own that accepts ``value`` only; ``path`` is where the value stands."""
        return self._made(f"{path}#const", {"const": value})

    def either(self, nodes: Sequence[Node], path: str) -> Node:
        """A schema of our own that accepts what any of ``nodes`` does; ``path`` names the keyword that asks for it."""
        name = f"{path}#either({','.join(node.path for node in nodes)})"
        for index, node in enumerate(nodes):
            self._values.setdefault(f"{name}/anyOf/{index}", node.schema)
            self._nodes.setdefault(f"{name}/anyOf/{index}", node)
        return self._made(name, {"anyOf": [node.schema for node in nodes]})

    def resolve(self, node: Node, reference: object, origin: Origin) -> Node:
        """What ``reference`` means in ``node``. Nothing is ever fetched."""
        if not isinstance(reference, str):
            raise SchemaRefused(origin, "a reference is a string", INVALID)
        uri, _, fragment = resolve_uri(node.resource.uri, reference).partition("#")
        resource = self._by_uri.get(uri)
        if resource is None:
            raise SchemaRefused(
                origin, f"{reference!r} is not part of this schema, and nothing is fetched", UNSUPPORTED
            )
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            path = resource.anchors.get(fragment)
            if path is None:
                raise SchemaRefused(origin, f"there is no anchor {fragment!r}", INVALID)
            return self.node(path)
        path, value = resource.path, self._values[resource.path]
        for token in fragment.split("/")[1:]:
            key = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and key in value:
                value = value[key]
            elif isinstance(value, list) and key.isascii() and key.isdigit() and int(key) < len(value):
                value = value[int(key)]
            else:
                raise SchemaRefused(origin, f"{reference!r} leads nowhere", INVALID)
            path = f"{path}/{escape_token(key)}"
            self._values[path] = value
        return self.node(path)

    def resolve_dynamic(self, node: Node, reference: object, origin: Origin, scope: tuple[Resource, ...]) -> Node:
        """What ``$dynamicRef`` means when ``node`` was reached through the resources ``scope``, outermost first."""
        target = self.resolve(node, reference, origin)
        _, _, name = str(reference).partition("#")
        if target.resource.dynamic_anchors.get(name) != target.path:
            return target
        for resource in scope:
            if name in resource.dynamic_anchors:
                return self.node(resource.dynamic_anchors[name])
        return target

    def resolve_recursive(self, node: Node, reference: object, origin: Origin, scope: tuple[Resource, ...]) -> Node:
        """The same for ``$recursiveRef`` of draft 2019-09."""
        target = self.resolve(node, reference, origin)
        if not target.resource.recursive or target.path != target.resource.path:
            return target
        return next((self.node(resource.path) for resource in scope if resource.recursive), target)

    def _made(self, path: str, schema: dict[str, object]) -> Node:
        if path not in self._nodes:
            self._values[path] = schema
            self._nodes[path] = Node(Resource("", path, Draft.MIXED, recursive=False), path, schema)
        return self._nodes[path]

    def _home_of(self, path: str) -> Resource:
        while path not in self._home:
            path = path.rpartition("/")[0]
        return self._home[path]

    def _index(self, schema: object, draft: Draft) -> None:
        outermost = Resource("", "#", draft, recursive=False)
        waiting: list[tuple[object, str, Resource]] = [(schema, "#", outermost)]
        while waiting:
            value, path, resource = waiting.pop()
            if isinstance(value, dict):
                resource = self._enter(value, path, resource)
            self._values[path] = value
            self._home[path] = resource
            if isinstance(value, dict):
                waiting += [(part, where, resource) for part, where in subschemas(value, path)]
        self._by_uri.setdefault("", self._home["#"])

    def _enter(self, schema: dict[str, object], path: str, resource: Resource) -> Resource:
        draft = resource.draft
        if isinstance(uri := schema.get("$schema"), str):
            known = dialect.draft_of(uri)
            if known is None:
                raise SchemaRefused(Origin("$schema", f"{path}/$schema"), f"unknown dialect {uri!r}", UNSUPPORTED)
            draft = known
        name = dialect.identifier(schema, draft)
        if draft is Draft.MIXED and path != "#" and name is not None and "$ref" in schema:
            reason = "beside $ref its meaning depends on the draft, which no $schema names"
            raise SchemaRefused(Origin("$id", f"{path}/$id"), reason, UNSUPPORTED)
        base, _, fragment = resolve_uri(resource.uri, name).partition("#") if name is not None else ("", "", "")
        if path == "#" or (name is not None and not name.startswith("#")):
            resource = Resource(base, path, draft, recursive=schema.get("$recursiveAnchor") is True)
            if base in self._by_uri:
                raise SchemaRefused(Origin("$id", f"{path}/$id"), f"{base!r} names two schemas", INVALID)
            self._by_uri[base] = resource
        if fragment and (draft <= Draft.DRAFT_7 or draft is Draft.MIXED):
            resource.anchors[fragment] = path
        for keyword, dynamic in (("$anchor", False), ("$dynamicAnchor", True)):
            if isinstance(anchor := schema.get(keyword), str) and draft > Draft.DRAFT_7:
                resource.anchors[anchor] = path
                if dynamic:
                    resource.dynamic_anchors[anchor] = path
        self.dynamic |= "$dynamicRef" in schema or "$recursiveRef" in schema
        return resource


def subschemas(schema: dict[str, object], path: str) -> Iterator[tuple[object, str]]:
    """The direct subschemas of ``schema``, which stands at ``path``, and their paths."""
    for keyword, value in schema.items():
        below = f"{path}/{escape_token(keyword)}"
        if isinstance(value, (dict, bool)) and keyword in dialect.ONE:
            yield value, below
        elif isinstance(value, list) and keyword in dialect.MANY:
            for index, part in enumerate(value):
                yield part, f"{below}/{index}"
        elif isinstance(value, dict) and keyword in dialect.NAMED:
            for name, part in value.items():
                if isinstance(part, (dict, bool)):
                    yield part, f"{below}/{escape_token(name)}"


def resolve_uri(base: str, reference: str) -> str:
    """RFC 3986 section 5, also for bases that the standard library takes for opaque (``urn:``)."""
    if reference.startswith("#"):
        return base.partition("#")[0] + reference
    if not base or urlsplit(reference).scheme:
        return reference
    return urljoin(base, reference)
