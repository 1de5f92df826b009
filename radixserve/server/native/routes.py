"""radixserve's own endpoints, and those of SGLang's and vLLM's shape."""

from __future__ import annotations

from radixserve.grammar.schema.report import SchemaReport
from radixserve.server.endpoints import Endpoint, Query
from radixserve.server.native import cache, control, generation, health, holding, information, schema_check, tokens
from radixserve.server.native.generate_fields import GenerateRequest
from radixserve.server.native.meta import Generated

_SALT = Query("cache_salt", "The part of the caller's namespace under this salt.", {"type": "string", "minLength": 1})
_ALL = Query("all", "Every namespace; needs the admin key.", {"type": "boolean"})

NATIVE: tuple[Endpoint, ...] = (
    Endpoint("GET", "/", information.welcome, "What this is.", "operations", answer=information.Welcome),
    Endpoint(
        "POST",
        "/generate",
        generation.generate,
        "Continue text or token ids, in SGLang's shape.",
        "native",
        body=GenerateRequest,
        answer=Generated | list[Generated],
        stream=Generated,
    ),
    Endpoint(
        "POST",
        "/tokenize",
        tokens.tokenize,
        "The tokens of a text or a conversation.",
        "native",
        body=tokens.TokenizeRequest,
        answer=tokens.Tokens,
    ),
    Endpoint(
        "POST",
        "/detokenize",
        tokens.detokenize,
        "The text of tokens.",
        "native",
        body=tokens.DetokenizeRequest,
        answer=tokens.Text,
    ),
    Endpoint(
        "POST",
        "/apply_template",
        tokens.apply_template,
        "The prompt of a conversation.",
        "native",
        body=tokens.TemplateRequest,
        answer=tokens.Rendered,
    ),
    *(
        Endpoint(
            "POST",
            path,
            control.abort,
            "End requests.",
            "native",
            body=control.AbortRequest,
            answer=control.AbortResult,
        )
        for path in ("/abort", "/abort_request")
    ),
    *(
        Endpoint(
            method,
            "/flush_cache",
            control.flush_cache,
            "Drop what is cached and not in use.",
            "native",
            body=control.FlushRequest if method == "POST" else None,
            body_required=False,
            answer=control.FlushResult,
            query=(_ALL, _SALT),
        )
        for method in ("POST", "GET")
    ),
    Endpoint(
        "POST",
        "/hold",
        holding.hold,
        "Keep a prefix in the cache for a while.",
        "native",
        body=holding.HoldRequest,
        answer=holding.HoldResult,
    ),
    Endpoint(
        "POST",
        "/release",
        holding.release,
        "End holds before their time.",
        "native",
        body=holding.ReleaseRequest,
        answer=holding.ReleaseResult,
    ),
    Endpoint(
        "GET",
        "/cache",
        cache.cache_tree,
        "What is cached, as a tree.",
        "native",
        answer=cache.Tree,
        query=(
            _ALL,
            _SALT,
            Query("max_nodes", "Most nodes shown.", {"type": "integer", "minimum": 1, "maximum": cache.MAX_NODES}),
            Query(
                "max_tokens", "Most tokens of a node.", {"type": "integer", "minimum": 0, "maximum": cache.MAX_TOKENS}
            ),
        ),
    ),
    Endpoint(
        "POST",
        "/cache/explain",
        cache.explain,
        "Why a prompt would hit or miss.",
        "native",
        body=cache.ExplainRequest,
        answer=cache.ExplainResult,
    ),
    Endpoint(
        "POST",
        "/v1/schema/check",
        schema_check.check_schema,
        "What becomes of a JSON schema, before it is used.",
        "native",
        body=schema_check.SchemaCheckRequest,
        answer=SchemaReport,
    ),
    *(
        Endpoint("GET", path, information.model_info, "Facts about the model.", "native", answer=information.ModelInfo)
        for path in ("/get_model_info", "/model_info")
    ),
    *(
        Endpoint(
            "GET", path, information.server_info, "Facts about the server.", "native", answer=information.ServerInfo
        )
        for path in ("/get_server_info", "/server_info")
    ),
    *(
        Endpoint("GET", path, handler, summary, "operations", answer=health.Health)
        for path, handler, summary in (
            ("/health", health.health, "Whether the engine is alive."),
            ("/ping", health.health, "Whether the engine is alive."),
            ("/ready", health.ready, "Whether a token was generated lately or can be."),
            ("/health_generate", health.health_generate, "Whether a token can be generated now."),
        )
    ),
    Endpoint("GET", "/metrics", health.metrics, "Metrics for Prometheus.", "operations", media_type="text/plain"),
    Endpoint("GET", "/version", information.show_version, "The version.", "operations", answer=information.Version),
)
