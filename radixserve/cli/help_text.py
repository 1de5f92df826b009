"""One line of help for each engine option and each sampling field.

Names, types, choices and defaults come from the classes themselves (`radixserve.cli.flags`); only the wording is here.
A test holds that both tables name exactly what exists.
"""

from __future__ import annotations

ENGINE_HELP: dict[str, str] = {
    "model": "smollm2, a .gguf file, a Hugging Face directory or a hub id.",
    "dtype": "Arithmetic of weights, activations and KV.",
    "weights": "Keep a quantized GGUF file's own blocks (native) or dequantize them (bf16); auto keeps them where it can.",
    "device": "Where the forward pass runs: on this machine's CPU, or on an NVIDIA GPU.",
    "context_length": "Lower the model's own context limit, in tokens.",
    "kernels": "The package's own CPU kernels or torch; auto takes the kernels where they can be had.",
    "attention": "Attention backend of the torch path.",
    "threads": "Threads of the forward pass; 0 takes the cores this process may use.",
    "block_size": "Tokens in a KV block.",
    "num_blocks": "Blocks in the KV pool; derived from --kv-memory-mb when left out.",
    "kv_memory_mb": "Size of the KV pool in MiB; derived from free memory when left out.",
    "kv_dtype": "Store K and V in half the memory, as int8 on a CPU, as float8 on a GPU; auto is the model's dtype.",
    "prefix_cache": "Share computed prefixes between requests; force_miss keeps the tree but never hits.",
    "eviction": "Which unlocked leaf goes first when blocks run out.",
    "ghost_tokens": "Evicted tokens that are remembered to explain misses.",
    "check_every_step": "Recount the books of the cache after every step (slow).",
    "hold_share": "Share of the pool that held prefixes may keep, all of them together.",
    "hold_max_s": "Longest time in seconds that a prefix is held.",
    "max_batch_tokens": "Token budget of a step.",
    "max_running": "Most requests in a step.",
    "policy": "Order of the waiting queue.",
    "age_weight": "Tokens of prefix match that the seniority of one arrival is worth (lpm).",
    "batching": "static admits only into an empty batch: a baseline.",
    "chunked_prefill": "Split long prompts over steps; off is a baseline.",
    "admission": "Reserve an adaptive estimate of the output, or all of it.",
    "watermark": "Share of the pool that admission leaves free.",
    "itl_target_ms": "Keep the predicted time of a step under this many milliseconds.",
    "fast_forward": "Compute tokens that a constraint leaves no choice of in one step; off takes one a step.",
    "seed": "Seed from which requests without their own get theirs.",
}

SAMPLING_HELP: dict[str, str] = {
    "max_tokens": "Most tokens to produce; 0 computes the prompt only.",
    "min_tokens": "No stop token or stop string ends the output before that many tokens.",
    "temperature": "0 always takes the most likely token.",
    "top_p": "Keep the most likely tokens that together have this probability.",
    "top_k": "Keep this many of the most likely tokens; 0 or -1 is off.",
    "min_p": "Drop tokens less likely than this share of the most likely one.",
    "repetition_penalty": "Divide the evidence for tokens seen in prompt or output.",
    "frequency_penalty": "Subtract this for each time a token was produced.",
    "presence_penalty": "Subtract this once a token was produced.",
    "logit_bias": "Add BIAS to the logit of token ID; may be repeated.",
    "stop": "End the output before this string; may be repeated.",
    "stop_token_ids": "End the output at this token, as well as at the model's own; may be repeated.",
    "stop_regex": "End the output after the first match of this pattern; may be repeated.",
    "include_stop": "Keep the stop string that ended the output.",
    "ignore_eos": "Go on past the model's end tokens.",
    "skip_special_tokens": "Leave special tokens out of the text.",
    "seed": "Fix every draw of this request.",
    "n": "Parallel samples from one prefill.",
    "logprobs": "Log-probabilities of the output with this many alternatives (shown with --json).",
    "prompt_logprobs": "Log-probabilities of the prompt with this many alternatives (shown with --json).",
    "logprob_start": "First prompt position of --prompt-logprobs.",
    "logprobs_mode": "Before (raw) or after (processed) penalties, bias, temperature and filters.",
    "finish_json": "Bring a constrained output to a valid end within --max-tokens.",
    "logprob_token_ids": "Give the log-probability of this token at every place too; may be repeated (shown with --json).",
}

# Topic and help.
SERVER_HELP: dict[str, tuple[str, str]] = {
    "host": ("Server", "Address to listen on."),
    "port": ("Server", "Port to listen on; 0 takes a free one."),
    "served_model_name": ("Server", "Name that clients ask for the model by; may be repeated."),
    "public_prompt": ("Server", "File whose text all callers may share as a cached prefix; may be repeated."),
    "stored_responses": ("Server", "Answers of /v1/responses that are kept for previous_response_id."),
    "retokenize_history": ("Server", "Tokenize earlier answers again instead of re-using their token ids."),
    "api_key": (
        "Access",
        "Key that opens the API; may be repeated. RADIXSERVE_API_KEY keeps it out of the process list.",
    ),
    "admin_key": ("Access", "Key for the whole view of the cache, flushing all of it and aborting others' requests."),
    "cors": ("Access", "Origin that browsers may call from, * for all; may be repeated."),
    "max_queued_requests": ("Limits", "Prompts that may wait for their first token; more are answered with 429."),
    "max_body_mb": ("Limits", "Largest request body in MiB, unpacked."),
    "request_timeout_s": ("Limits", "End a request that takes longer; 0 is off."),
    "grace_s": ("Limits", "Seconds that requests may run on after the server was told to stop."),
    "keepalive_s": ("Limits", "A silent stream carries a comment that often, in seconds."),
    "log_level": ("Logs", "What is logged."),
    "log_format": ("Logs", "Text for people, or one JSON object a line."),
    "log_prompts": ("Logs", "Log prompts and outputs as well."),
}
