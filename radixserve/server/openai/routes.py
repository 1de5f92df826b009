"""OpenAI's endpoints."""

from __future__ import annotations

from radixserve.server.endpoints import Endpoint
from radixserve.server.openai import (
    chat,
    chat_answers,
    chat_fields,
    completions,
    embeddings,
    models,
    responses,
    responses_answers,
    responses_fields,
    responses_stored,
)

OPENAI: tuple[Endpoint, ...] = (
    Endpoint(
        "POST",
        "/v1/chat/completions",
        chat.chat_completions,
        "Answer a conversation.",
        "openai",
        body=chat_fields.ChatRequest,
        answer=chat_answers.ChatCompletion,
        stream=chat_answers.ChatChunk,
    ),
    Endpoint(
        "POST",
        "/v1/completions",
        completions.completions,
        "Continue text or token ids.",
        "openai",
        body=completions.CompletionRequest,
        answer=completions.Completion,
        stream=completions.Completion,
    ),
    Endpoint(
        "POST",
        "/v1/embeddings",
        embeddings.embeddings,
        "Pooled hidden states of texts.",
        "openai",
        body=embeddings.EmbeddingRequest,
        answer=embeddings.EmbeddingList,
    ),
    Endpoint(
        "POST",
        "/v1/responses",
        responses.create_response,
        "Answer a conversation and keep the answer to go on from.",
        "openai",
        body=responses_fields.ResponsesRequest,
        answer=responses_answers.ResponseObject,
        stream=responses_answers.ResponseEvent,
    ),
    Endpoint(
        "GET",
        "/v1/responses/{response_id}",
        responses_stored.get_response,
        "A response that is kept.",
        "openai",
        answer=responses_answers.ResponseObject,
        query=(responses_stored.SALT_QUERY,),
    ),
    Endpoint(
        "DELETE",
        "/v1/responses/{response_id}",
        responses_stored.delete_response,
        "Forget a response.",
        "openai",
        answer=responses_answers.DeletedResponse,
        query=(responses_stored.SALT_QUERY,),
    ),
    Endpoint(
        "GET",
        "/v1/responses/{response_id}/input_items",
        responses_stored.list_input_items,
        "What a response was made from.",
        "openai",
        answer=responses_answers.ItemList,
        query=responses_stored.LIST_QUERY,
    ),
    Endpoint(
        "POST",
        "/v1/responses/{response_id}/cancel",
        responses_stored.cancel_response,
        "Refused: no response is made in the background.",
        "openai",
        query=(responses_stored.SALT_QUERY,),
    ),
    Endpoint("GET", "/v1/models", models.list_models, "The models served here.", "openai", answer=models.ModelList),
    Endpoint(
        "GET", "/v1/models/{model:path}", models.get_model, "One of the models.", "openai", answer=models.ModelCard
    ),
)
