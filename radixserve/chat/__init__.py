"""Between a conversation and a model's tokens, and back from the model's text to content, reasoning and tool calls.

`format.ChatFormat` is the door: it is made once from a model's template and tokenizer, turns a checked conversation and
its tools into a prompt, says what constraint the output needs, and gives the parser that takes the output apart.
"""
