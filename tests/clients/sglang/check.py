"""SGLang's own frontend over its RuntimeEndpoint: gen, select by every method, fork, streams, patterns, many at once."""

from __future__ import annotations

import json
from typing import Any

import sglang
from checking import (
    PROMPT,
    Server,
    check,
    expect,
    expect_cached,
    expect_equal,
    expect_match,
    expect_raises,
    expect_text,
    expect_usage,
    middle_word,
    run_checks,
    too_long,
)

SERVER = Server.from_environment()
BACKEND = sglang.RuntimeEndpoint(SERVER.root, api_key=SERVER.key)
sglang.set_default_backend(BACKEND)
METHODS = (
    sglang.token_length_normalized,
    sglang.greedy_token_selection,
    sglang.unconditional_likelihood_normalized,
)
QUESTION = "Question: " + PROMPT + "\nAnswer:"


@sglang.function
def answer(s: Any, question: str, settings: dict[str, Any]) -> None:
    """A greedy answer of at most 24 tokens, unless the settings say otherwise."""
    s += question
    s += sglang.gen("text", **{"max_tokens": 24, "temperature": 0, **settings})


def finished(program: Any, **arguments: Any) -> Any:
    """The state of a program that has run to its end; its error is raised."""
    state = program.run(**arguments)
    state.sync()
    if state.error() is not None:
        raise state.error()
    return state


def ask(question: str = QUESTION, **more: Any) -> tuple[str, dict[str, Any]]:
    """Text and meta information of `answer`."""
    state = finished(answer, question=question, settings=more)
    return state["text"], state.get_meta_info("text")


@check
def endpoint_describes_itself() -> None:
    expect_equal(BACKEND.get_model_name(), BACKEND.model_info["model_path"], "name of the model")
    expect(isinstance(BACKEND.get_server_info(), dict), "server info is not an object")
    expect(isinstance(sglang.get_server_info(), dict), "server info through the language")


@check
def gen_has_content_usage_and_finish_reason() -> None:
    text, meta = ask()
    expect_text(text)
    prompt, generated = meta.get("prompt_tokens"), meta.get("completion_tokens")
    expect(isinstance(prompt, int) and isinstance(generated, int), f"usage is missing in {meta!r}")
    expect_usage(prompt, generated, prompt + generated, most=24)
    reason = meta.get("finish_reason")
    expect(isinstance(reason, dict), f"finish_reason: {reason!r}")
    if reason["type"] == "length":
        expect_equal((reason["length"], generated), (24, 24), "length")
    else:
        expect_equal(reason["type"], "stop", "type of the finish reason")
    again, second = ask()
    expect_equal(again, text, "text of the same request")
    expect_cached(second.get("cached_tokens"), prompt)


@check
def stop_strings_and_tokens() -> None:
    whole, _ = ask()
    word = middle_word(whole)
    text, meta = ask(stop=word)
    expect_equal(text, whole[: whole.index(word)], f"text before {word!r}")
    expect_equal((meta["finish_reason"]["type"], meta["finish_reason"]["matched"]), ("stop", word), "finish_reason")
    _, meta = ask(stop=[word, "\n\n\n"], min_tokens=1, ignore_eos=True)
    expect_equal(meta["finish_reason"]["type"], "stop", "finish_reason with a list of stops")
    generated = [token for _, token, _ in ask(return_logprob=True)[1]["output_token_logprobs"]]
    third = generated[2]
    _, meta = ask(stop_token_ids=[third])
    expect_equal(meta["finish_reason"], {"type": "stop", "matched": third}, "finish_reason of a stop token")


@check
def stream_equals_the_whole_text() -> None:
    whole, meta = ask()
    state = answer.run(question=QUESTION, settings={}, stream=True)
    parts = list(state.text_iter("text"))
    expect(len(parts) > 3, f"the stream has only {len(parts)} parts")
    expect_equal("".join(parts), whole, "text of the stream")
    streamed = state.get_meta_info("text")
    for name in ("prompt_tokens", "completion_tokens", "finish_reason"):
        expect_equal(streamed.get(name), meta[name], f"{name} of the stream")


@check
def patterns_schemas_and_types() -> None:
    text, meta = ask(regex="[A-Z]{2}-[0-9]{4}")
    expect_match("[A-Z]{2}-[0-9]{4}", text, "gen(regex=)")
    expect_equal(meta["finish_reason"]["type"], "stop", "finish_reason")
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 9}},
        "required": ["n"],
        "additionalProperties": False,
    }
    text, _ = ask(json_schema=json.dumps(schema), max_tokens=60)
    expect(3 <= json.loads(text)["n"] <= 9, f"gen(json_schema=): {text!r}")
    for kind, pattern in ((int, "[-+]?[0-9]+[ \n]*"), (bool, "True|False")):
        text, _ = ask("Two plus two is", dtype=kind, max_tokens=8)
        expect_match(pattern, text, f"gen(dtype={kind.__name__})")


@check
def logprobs_of_prompt_and_output() -> None:
    asked = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    text, meta = ask(**asked)
    prompt = meta.get("input_token_logprobs")
    output = meta.get("output_token_logprobs")
    expect(prompt and output, "logprobs are missing")
    expect_equal((len(prompt), len(output)), (meta["prompt_tokens"], meta["completion_tokens"]), "numbers of logprobs")
    expect(prompt[0][0] is None and all(value <= 0 for value, _, _ in prompt[1:]), "logprobs of the prompt")
    expect_equal("".join(piece for _, _, piece in prompt), QUESTION, "prompt put together")
    expect("".join(piece for _, _, piece in output).startswith(text), "output put together")
    expect_equal([len(each) for each in meta["output_top_logprobs"]], [2] * len(output), "numbers of alternatives")
    best = [alternatives[0][1] for alternatives in meta["output_top_logprobs"]]
    expect_equal(best, [token for _, token, _ in output], "greedy tokens and best alternatives")


@check
def select_by_every_method() -> None:
    for method in METHODS:

        @sglang.function
        def choose(s: Any, method: Any = method) -> None:
            s += "The capital of France is the city of"
            s += sglang.select("city", [" Paris", " Oslo", " Nairobi"], choices_method=method)

        states = [finished(choose) for _ in range(2)]
        name = type(method).__name__
        expect_equal(states[0]["city"], " Paris", f"{name}: choice")
        meta = states[0].get_meta_info("city")
        expect_equal(len(meta["input_token_logprobs"]), 3, f"{name}: choices with logprobs")
        expect_equal(
            states[1].get_meta_info("city")["normalized_prompt_logprobs"],
            meta["normalized_prompt_logprobs"],
            f"{name}: logprobs",
        )
    expect(ask("Is water wet? Answer yes or no:", choices=[" yes", " no"])[0] in (" yes", " no"), "gen(choices=)")


@check
def forks_share_their_prefix() -> None:
    @sglang.function
    def branches(s: Any) -> None:
        s += QUESTION
        forks = s.fork(4)
        for number, fork in enumerate(forks):
            fork += f" {number + 1}."
            fork += sglang.gen("branch", max_tokens=8, temperature=0)
        forks.join()
        for number, fork in enumerate(forks):
            s += f" ({number}) " + fork["branch"]
        s += sglang.gen("end", max_tokens=8, min_tokens=4, temperature=0)
        s["cached"] = [fork.get_meta_info("branch")["cached_tokens"] for fork in forks]

    BACKEND.cache_prefix(QUESTION)
    state = finished(branches)
    expect_text(state["end"])
    expect(all(count > 10 for count in state["cached"]), f"cached tokens of the forks: {state['cached']}")


@check
def chat_roles_and_variables() -> None:
    @sglang.function
    def chat(s: Any) -> None:
        s += sglang.system("You answer briefly.")
        s += sglang.user(PROMPT)
        s += sglang.assistant(sglang.gen("one", max_tokens=12, temperature=0))
        s += sglang.user("And then?")
        s += sglang.assistant(sglang.gen("two", max_tokens=12, temperature=0))

    state = finished(chat)
    expect_text(state["one"])
    expect_text(state["two"])
    cached = state.get_meta_info("two")["cached_tokens"]
    expect(cached >= state.get_meta_info("one")["prompt_tokens"], f"cached tokens of turn two: {cached}")


@check
def many_at_once_equal_one_by_one() -> None:
    questions = [{"question": f"{QUESTION} number {number}:", "settings": {}} for number in range(16)]
    states = answer.run_batch(questions, num_threads=8)
    alone = [ask(each["question"])[0] for each in questions[:4]]
    expect_equal([state["text"] for state in states[:4]], alone, "texts of a batch and alone")
    expect(all(state["text"] for state in states), "a text of the batch is empty")


@check
def flush_and_errors() -> None:
    BACKEND.flush_cache()
    _, meta = ask()
    expect_equal(meta["cached_tokens"], 0, "cached tokens after a flush")
    for question, more in (
        (too_long(SERVER), {}),
        (QUESTION, {"json_schema": '{"type": "nonsense"}'}),
        (QUESTION, {"temperature": -1}),
    ):
        error = expect_raises(RuntimeError, lambda question=question, more=more: ask(question, **more))
        expect("error" in str(error), f"error body: {error}")
    expect_raises(RuntimeError, lambda: sglang.RuntimeEndpoint(SERVER.root, api_key="not-the-key"))


if __name__ == "__main__":
    run_checks()
