"""Chat templates in the manner of the known families: the syntax is theirs, the words are not."""

from __future__ import annotations

CHATML = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

QWEN = """{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- 'Functions between <tools> tags:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\nCall them as\\n<tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- set plain = message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
{%- if plain or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant' }}
{%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
{%- for tool_call in message.tool_calls %}
{%- set call = tool_call.function %}
{{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}{{- call.arguments | tojson }}{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

LLAMA = """{{- bos_token }}
{%- macro turn(role) %}{{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}{%- endmacro %}
{%- if messages[0].role == 'system' %}
{%- set system = messages[0].content | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = '' %}{%- endif %}
{{- turn('system') }}{{- 'Today: ' + (today or 'unknown') + '\\n\\n' + system + '<|eot_id|>' }}
{%- if tools %}
{{- turn('user') }}{{- 'Answer with {"name": function name, "parameters": object}.\\n\\n' }}
{%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}
{{- messages[0].content | trim + '<|eot_id|>' }}{%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
{%- if message.tool_calls %}
{%- if message.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
{%- set call = message.tool_calls[0].function %}
{{- turn('assistant') }}{{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- '}<|eot_id|>' }}
{%- elif message.role == 'tool' %}
{{- turn('ipython') }}{{- message.content + '<|eot_id|>' }}
{%- else %}
{{- turn(message.role) }}{{- message.content | trim + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- turn('assistant') }}{%- endif %}"""

MISTRAL_LIST = """{{- bos_token }}
{%- if messages[0].role == 'system' %}{{- raise_exception('no system messages') }}{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if tools is not none and loop.first %}{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{{- '[INST]' + message.content + '[/INST]' }}
{%- elif message.tool_calls is defined %}
{{- '[TOOL_CALLS][' }}
{%- for tool_call in message.tool_calls %}
{%- if tool_call.id | length != 9 %}{{- raise_exception('ids have nine characters') }}{%- endif %}
{%- set text = tool_call.function | tojson %}
{{- text[:-1] + ', "id": "' + tool_call.id + '"}' }}{%- if not loop.last %}{{- ', ' }}{%- endif %}
{%- endfor %}
{{- ']' + eos_token }}
{%- elif message.role == 'assistant' %}
{{- message.content + eos_token }}
{%- elif message.role == 'tool' %}
{%- if message.tool_call_id | length != 9 %}{{- raise_exception('ids have nine characters') }}{%- endif %}
{{- '[TOOL_RESULTS]{"content": ' + message.content | tojson + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- endif %}
{%- endfor %}"""

MISTRAL = """{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{- '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}
{%- elif message.role == 'user' %}
{%- if tools and loop.last %}{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{{- '[INST]' + message.content + '[/INST]' }}
{%- elif message.role == 'assistant' %}
{%- if message.content %}{{- message.content }}{%- endif %}
{%- for tool_call in message.tool_calls or [] %}
{{- '[TOOL_CALLS]' + tool_call.function.name + '[ARGS]' + tool_call.function.arguments }}
{%- endfor %}
{{- eos_token }}
{%- elif message.role == 'tool' %}{{- '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
{%- endif %}
{%- endfor %}"""

THINKER = """{%- for message in messages %}
{%- set content = message.content %}
{%- if message.role == 'assistant' and '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n<think>\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

OTHER_TOOLS = """{%- if tools %}{{- tools | tojson }}{%- endif %}
{%- for message in messages %}
{{- message.role + ': ' + (message.content or '') }}
{%- for tool_call in message.tool_calls or [] %}
{%- set call = tool_call.function %}{{- '@@' + call.name + '(' + call.arguments | tojson + ')' }}
{%- endfor %}
{{- '\\n' }}
{%- endfor %}"""
