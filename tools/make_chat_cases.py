#!/usr/bin/env python3
"""Renders small templates with the jinja2 package, set up as transformers sets it up, into test data.

Usage: make_chat_cases.py tests/data/chat/cases.json          (needs: pip install jinja2)

Each case: group, source, context (where it has one), and text, or error: true where jinja2 fails.
"""
import json
import sys

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

CONTEXT = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Hi\tthere "},
        {"role": "assistant", "content": "Hello", "tool_calls": [{"name": "f", "arguments": {"a": 1, "b": [1.5, None, True]}}]},
        {"role": "user", "content": "Bye"},
    ],
    "s": "Straße und ÉTÉ, it's \"quoted\" <b>",
    "empty": "",
    "n": 7,
    "x": -2.5,
    "t": True,
    "none_value": None,
    "d": {"b": 1, "a": "two", "C": [3], "items": "own", "nested": {"deep": [{"k": "v"}]}},
    "l": [3, 1, 2],
    "words": ["pear", "Apple", "fig", "apple"],
    "people": [{"name": "Zoe", "age": 30, "tags": ["x"]}, {"name": "adam", "age": 25}, {"name": "Bo", "age": 30, "tags": []}],
    "lines": "one\n  two\n\nthree\r\nfour",
    "emoji": "a😀é中",
}

GROUPS = {
    "whitespace": [
        "a\n{% if true %}\nb\n{% endif %}\nc\n",
        "a\n  {% if true %}  \n  b\n  {% endif %}\n  c",
        "a  {%- if true -%}  b  {%- endif -%}  c",
        "a\n  {%+ if true %}\n  b\n  {%+ endif %}c",
        "a {% if true +%}\nb{% endif +%}\nc",
        "  {{ n }}  \n  {{- n }} | {{ n -}}  \n  x",
        "a {# gone #} b\n  {# gone too #}\nc {#- both -#} d",
        "{# one #}\n{# two #}\nx",
        "a\n\t {#- c #}\nb{# d -#}\n\n e",
        "{% raw %}{{ x }} {% if %}{# c #}{% endraw %}|",
        "a\n  {%- raw -%}\n  {{ y }}\n  {%- endraw -%}\n b",
        "  {% raw %}\nx\n  {% endraw %}\ny",
        "x\r\ny\rz{% if t %}\r\nw{% endif %}\r\n",
        "trailing\n",
        "trailing two\n\n",
        "\n\nlead",
        "{% set q = 1 %}\n\n{% set q = 2 %}\n{{ q }}\n",
        "{% for i in l %}\n{{ i }}\n{% endfor %}\nend",
        "{% for i in l -%}\n  {{ i }},\n{%- endfor %}\nend",
        "{{ '{{' }} {{ '%}' }} {{ \"#}\" }}",
        "{{'a'}}{{-'b'}}   {{-'c'-}}   {{'d'}}",
        "a{%if t%}b{%endif%}c",
        "\u00a0{%- if t -%}\u2003x\u3000{%- endif %}",
        "{ { } } {a} %} }} #}",
        "line one {% if t %} mid {% endif %}\nnext",
        "   {% if t %}x{% endif %}   {% if t %}y{% endif %}\n  z",
        "{% if t %}\n   {% if t %}\n a\n   {% endif %}\n{% endif %}",
        "x{{ 1 -}}\n\n  {% if t %} y{% endif %}",
        "{{ 1 }}\n{{ 2 }}\n",
    ],
    "literals": [
        "{{ 1 }} {{ -1 }} {{ 007 if false else 7 }} {{ 1_000 }} {{ 1.5 }} {{ 1e3 }} {{ 2.5e-7 }} {{ 1_0.2_5 }}" .replace("007 if false else 7", "7"),
        "{{ true }} {{ True }} {{ false }} {{ none }} {{ None }}",
        "{{ 'a' 'b' \"c\" }}",
        r"{{ 'tab\tnl\nq\'q\"q\\ \x41 \u00e9 \U0001F600 \101 \z' }}",
        "{{ 'multi\nline' }}",
        "{{ [] }} {{ [1, 'a', none, true] }} {{ [1, 2,] }} {{ [[1], [2, [3]]] }}",
        "{{ () }} {{ (1,) }} {{ (1, 2) }} {{ 1, 2 }} {{ (1) }}",
        "{{ {} }} {{ {'a': 1, 'b': {'c': []}} }} {{ {1: 2, none: 3, true: 4} }} {{ {'a': 1, 'a': 2} }}",
        "{{ 'it\\'s' }} {{ [\"it's\", 'say \"x\"', 'both \\' and \"'] }}",
        "{{ ['\\n\\t\\\\', '\\x00\\x7f', '\u00e9\u00a0\u200b\U0001F600'] }}",
        "{{ [1.0, 0.1, 1e16, 1e15, 123456789.123, 1e-5, 0.0001, 5e-324, 1.7976931348623157e308, -0.0] }}",
        "{{ 9223372036854775807 }}",
    ],
    "arithmetic": [
        "{{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }}",
        "{{ 7 / 2 }} {{ 6 / 2 }} {{ 1 / 3 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 // 2 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }} {{ 1e3 // 1 }}",
        "{{ true + 1 }} {{ true * 'ab' }} {{ 'ab' * 3 }} {{ 2 * [1, 2] }} {{ [1] + [2] }} {{ (1,) + (2,) }} {{ 'a' * -1 }}|",
        "{{ 'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1] ~ missing }}",
        "{{ 'a' + 'b' ~ 'c' + 'd' }} {{ 1 ~ 2 + 3 }}",
        "{{ - n }} {{ + n }} {{ -x }} {{ - n|abs }} {{ (-n)|abs }}",
        "{{ 1 / 0 }}", "{{ 1 // 0 }}", "{{ 1 % 0 }}", "{{ 1.0 / 0 }}", "{{ 0 ** -1 }}",
        "{{ 1 + 'a' }}", "{{ 'a' + 1 }}", "{{ [1] + (2,) }}", "{{ none + 1 }}", "{{ missing + 1 }}", "{{ -'a' }}", "{{ {} + {} }}",
        "{{ 0.1 + 0.2 }} {{ 1e308 * 10 }} {{ 3 * 1.0 }} {{ 2 ** 0.5 }} {{ 2.0 ** 3 }}",
    ],
    "comparison": [
        "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 3 > 2 >= 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ 'Z' < 'a' }} {{ [1, 2] < [1, 3] }} {{ [1] < [1, 0] }}",
        "{{ 'a' == 'a' }} {{ 'a' != 'b' }} {{ [1, 2] == [1, 2] }} {{ [1] == (1,) }} {{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }} {{ none == none }} {{ none == false }} {{ missing == other }} {{ missing == none }} {{ 1 == '1' }}",
        "{{ 1 in l }} {{ 9 in l }} {{ 9 not in l }} {{ 'a' in d }} {{ 'z' not in d }} {{ 'tra' in s }} {{ '' in s }} {{ 'x' in missing }} {{ 1 in (1, 2) }} {{ 2 in d.values() }}",
        "{{ not 1 in l }} {{ not true }} {{ not not 1 }} {{ not '' }}",
        "{{ 1 < 'a' }}", "{{ none < 1 }}", "{{ missing < 1 }}", "{{ [] < {} }}", "{{ 1 in 1 }}", "{{ 1 in 'a' }}", "{{ {} < {} }}",
        "{{ 0 and 1 }} {{ 1 and 2 }} {{ '' or 'x' }} {{ 0 or none }} {{ 1 or 1/0 }} {{ 0 and 1/0 }} {{ not 1 or 2 and 3 }}",
        "{{ 1 == 1 == 1 }} {{ (1 == 1) == true }} {{ 1 is defined == true }}",
    ],
    "condition": [
        "{{ 'y' if n > 5 else 'n' }} {{ 'y' if n > 9 }}| {{ 1 if 0 else 2 if 0 else 3 }} {{ ('a' if t else 'b') ~ 'c' }}",
        "{% if n > 9 %}a{% elif n > 5 %}b{% else %}c{% endif %} {% if missing %}a{% elif none_value %}b{% else %}c{% endif %}",
        "{% if [] %}a{% else %}b{% endif %}{% if [0] %}a{% endif %}{% if {} %}x{% endif %}{% if 0.0 %}y{% endif %}{% if ' ' %}z{% endif %}",
        "{% if not missing and n == 7 or boom.x %}ok{% endif %}",
        "{% if n %}{% elif 1/0 %}{% endif %}fine",
        "{{ (missing if t else 1) is defined }} {{ (1 if false) is defined }}",
        "{% if 1 is not none and 2 is number %}{{ 'in' if 'a' in 'abc' else 'out' }}{% endif %}",
    ],
    "access": [
        "{{ d.b }} {{ d['a'] }} {{ d.C[0] }} {{ d['nested'].deep[0]['k'] }} {{ d.nested['deep'].0.k }} {{ messages[-1].content }} {{ messages[0]['role'] }}",
        "{{ d.missing }}| {{ d['missing'] }}| {{ l[10] }}| {{ l['a'] }}| {{ n.foo }}| {{ none_value.foo }}| {{ s.nope }}|",
        "{{ d.missing.deeper }}", "{{ missing.x }}", "{{ missing['x'] }}", "{{ missing() }}", "{{ n() }}", "{{ d.b() }}",
        "{{ d['items'] }} {{ d.items()|list }} {{ d.get('b') }} {{ d.get('zz') }} {{ d.get('zz', 5) }} {{ d.get('zz', default=6) if false else 6 }}",
        "{{ l[0:2] }} {{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ l[::2] }} {{ l[-2:] }} {{ l[5:] }} {{ l[2:0:-1] }} {{ (1, 2, 3)[1:] }} {{ messages[1:][0].role }}",
        "{{ 'hello'[1] }} {{ 'hello'[-1] }} {{ 'hello'[1:3] }} {{ 'hello'[::-1] }} {{ 'hello'[::2] }} {{ emoji[1] }} {{ emoji[::-1] }} {{ emoji[1:3] }} {{ emoji[-1:] }} {{ 'abc'[9] }}|",
        "{{ l[none:none] }} {{ l[0:-1:1] }} {{ l[-100:100] }} {{ l[100:-100:-1] }}",
        "{{ l[::0] }}", "{{ missing[0] }}", "{{ l['x':] }}", "{{ n[1:] }}|",
        "{{ {1: 'one', (1, 2): 'pair', none: 'n', true: 'one too'}[(1, 2)] }} {{ {1: 'a'}[true] }} {{ {1: 'a'}[1.0] }}",
        "{{ d.keys()|list }} {{ d.values()|list|length }} {{ d.keys()|length }} {% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
        "{{ messages[2].tool_calls[0].arguments.b[1] is none }} {{ messages[2]['tool_calls'][0]['arguments']['a'] + 1 }}",
        "{{ range(3)[1] }} {{ range(10)[2:4]|list }} {{ 'abc'|list }}",
    ],
    "set": [
        "{% set a = 1 %}{{ a }}{% set a = a + 1 %}{{ a }}",
        "{% set a, b = 1, 2 %}{{ a }}{{ b }} {% set (c, e) = [3, 4] %}{{ c }}{{ e }} {% set p = 1, 2 %}{{ p }}",
        "{% set a %}text {{ n }} more{% endset %}[{{ a }}] {% set b | upper | trim %} x {% endset %}[{{ b }}]",
        "{% set a = 1 %}{% for i in l %}{% set a = i %}{{ a }}{% endfor %}{{ a }}",
        "{% set a = 1 %}{% if t %}{% set a = 2 %}{% endif %}{{ a }}",
        "{% for i in l %}{% if loop.first %}{% set z = i %}{% endif %}{{ z }}|{% endfor %}",
        "{% set ns = namespace(c=0, found=false) %}{% for i in l %}{% set ns.c = ns.c + i %}{% if i == 1 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.c }} {{ ns.found }} {{ ns.nope }}|",
        "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns['a'] }}{% set ns.s %}block {{ ns.a }}{% endset %}{{ ns.s }}",
        "{% set x.y = 1 %}", "{% set d.q = 1 %}", "{% set a, b = 1 %}", "{% set a, b = [1, 2, 3] %}",
        "{% set a %}{% set hidden = 5 %}{{ hidden }}{% endset %}{{ a }}{{ hidden }}|",
        "{% with a = 1, b = n %}{{ a }}{{ b }}{% set a = 9 %}{{ a }}{% endwith %}{{ a }}|{% with %}w{% endwith %}",
        "{% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %}",
        "{% filter upper %}ab {{ n }} c{% endfilter %} {% filter replace('a', 'b') | title %}banana split{% endfilter %}",
        "{% set loop_index = 3 %}{{ loop_index }}",
        "{% set a = [] %}{% set a = a + [1] %}{% set a = a + [2] %}{{ a }}",
        "{% set messages = messages[1:] %}{{ messages|length }}",
    ],
    "for": [
        "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}",
        "{% for i in l %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}{% for i in l %}{{ loop.previtem is defined }}{{ loop.nextitem is undefined }}{% endfor %}",
        "{% for i in [] %}x{% else %}none{% endfor %} {% for i in missing %}x{% else %}undef{% endfor %} {% for i in l %}{% else %}no{% endfor %}",
        "{% for i in l if i > 1 %}{{ i }}:{{ loop.index }}/{{ loop.length }} {% else %}none{% endfor %} {% for i in l if i > 9 %}x{% else %}none{% endfor %}",
        "{% for k in d %}{{ k }},{% endfor %} {% for c in 'a😀b' %}[{{ c }}]{% endfor %} {% for i in range(3) %}{{ i }}{% endfor %} {% for i in (1, 2) %}{{ i }}{% endfor %} {% for i in 1, 2 %}{{ i }}{% endfor %}",
        "{% for a, b in [[1, 2], (3, 4), 'xy'] %}{{ a }}-{{ b }} {% endfor %}{% for a, b in [[1, 2, 3]] %}{% endfor %}",
        "{% for a, b in [[1, 2], (3, 4), 'xy'] %}{{ a }}-{{ b }} {% endfor %}{% for (a, b) in d.items() %}{{ a }}{% endfor %}",
        "{% for i in 5 %}{% endfor %}", "{% for i in none %}{% endfor %}",
        "{% for i in range(6) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}|",
        "{% for i in l %}{% for j in l %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{{ loop.index }};{% endfor %}",
        "{% for i in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }} {% endfor %}",
        "{% for i in l %}{% set outer = loop %}{% for j in 'ab' %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
        "{{ loop is defined }}{% for i in l %}{{ i }}{% endfor %}{{ i is defined }}{{ loop is defined }}",
        "{% for m in messages %}{{ m['role'] }}: {{ m.content | trim }}{{ '\\n' if not loop.last }}{% endfor %}",
        "{% for m in messages|selectattr('role', 'equalto', 'user') %}{{ loop.index }}{{ m.content }}{% endfor %}",
        "{% for i in l|sort|reverse %}{{ i }}{{ loop.last }}{% endfor %}",
        "{% for x in people if x.tags %}{{ x.name }}{% endfor %}|{% for x in people if x.age == 30 and not loop %}{{ x.name }}{% endfor %}",
        "{% for i in range(2, 10, 3) %}{{ i }} {% endfor %}{% for i in range(5, 0, -2) %}{{ i }} {% endfor %}{% for i in range(0) %}{% else %}e{% endfor %}",
        "{{ range(0, 5) }} {{ range(3) }} {{ range(3)|length }} {{ range(3)|list }}",
        "{% for i in range(1, 2, 0) %}{% endfor %}",
    ],
    "macro": [
        "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=5, a=4) }} {{ m() }} {{ m('x', b='y') }}",
        "{% macro m(a) %}[{{ a }}{% if a > 0 %}{{ m(a - 1) }}{% endif %}]{% endmacro %}{{ m(3) }}",
        "{% set g = 'global' %}{% macro m() %}{{ g }}{% set g2 = 1 %}{% endmacro %}{{ m() }}{% set g = 'later' %}{{ m() }}{{ g2 }}|",
        "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
        "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
        "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(y=2) }}",
        "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(7) }}",
        "{% macro m(a=[], b=none) %}{{ a }}{{ b }}{% endmacro %}{{ m() }}{{ m([1]) }}",
        "{%- macro show(v, depth=0) -%}\n{%- if v is mapping -%}\n{{ '{' }}{% for k, x in v.items() %}{{ k }}: {{ show(x, depth + 1) }}{{ ', ' if not loop.last }}{% endfor %}{{ '}' }}\n{%- else -%}\n{{ v }}@{{ depth }}\n{%- endif -%}\n{%- endmacro -%}\n{{ show(d.nested) }}",
        "{% macro m() %}  x  {% endmacro %}[{{ m()|trim }}][{{ m() | upper }}]{{ m is callable }} {{ m is defined }}",
        "{% set r = namespace(v='') %}{% macro m() %}{% set r.v = r.v ~ 'x' %}{% endmacro %}{{ m() }}{{ m() }}{{ r.v }}",
    ],
    "generation": [
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.role }}{% endif %}{% endfor %}",
        "a\n{%- generation -%}\n  b\n{%- endgeneration %}\nc",
        "{% generation %}{% set q = 1 %}{{ q }}{% endgeneration %}{{ q is defined }}",
    ],
    "tests": [
        "{{ n is defined }} {{ missing is defined }} {{ missing is undefined }} {{ d.zz is undefined }} {{ none_value is defined }} {{ none_value is none }} {{ n is none }} {{ missing is none }}",
        "{% for v in [1, 1.5, 'a', true, none, [], (1,), {}] %}{{ v is string }},{{ v is number }},{{ v is integer }},{{ v is float }},{{ v is boolean }},{{ v is mapping }},{{ v is iterable }},{{ v is sequence }},{{ v is true }},{{ v is false }}\n{% endfor %}",
        "{{ missing is iterable }} {{ missing is sequence }} {{ range(2) is sequence }} {{ range(2) is iterable }} {{ d.items() is sequence }} {{ d.keys() is iterable }} {{ (l|map('string')) is iterable }} {{ (l|map('string')) is sequence }} {{ 'abc'|list is sequence }}",
        "{{ 3 is odd }} {{ 3 is even }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 'A' is upper }} {{ 'a' is lower }} {{ 'aB' is lower }} {{ '1' is upper }}",
        "{{ 1 is eq 1 }} {{ 1 is equalto 2 }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 1 is greaterthan 2 }} {{ 1 is ge 1 }} {{ 1 is le 0 }} {{ 1 is in [1] }} {{ 'a' is in('abc') }} {{ none is sameas none }} {{ l is sameas l }} {{ [1] is sameas [1] }} {{ true is sameas 1 }}",
        "{{ 1 is not none }} {{ not 1 is none }} {{ 'a' is string and 1 is number }} {{ 1 is defined or 1/0 }} {{ n is number and n > 3 }} {{ x is not integer }}",
        "{{ range is callable }} {{ n is callable }} {{ raise_exception is defined }} {{ strftime_now is defined }} {{ nothing_such is defined }} {{ 'a'.upper is callable }}",
        "{{ 'a' is odd }}", "{{ 1 is divisibleby 0 }}", "{{ 1 is lt 'a' }}",
        "{{ 5 is divisibleby n - 2 }}", "{{ n is eq n }} {{ n is eq d.b }} {{ 'two' is eq d['a'] }}",
    ],
    "text filters": [
        "[{{ '  a b \\n' | trim }}] [{{ 'xxaxx' | trim('x') }}] [{{ none | trim }}] [{{ 5 | trim }}]",
        "{{ s | upper }} {{ s | lower }} {{ 'hello wORLD-foo (bar) [x] it\\'s' | title }} {{ 'hELLO wORLD' | capitalize }} {{ '' | capitalize }}|",
        "{{ 'aXbXc' | replace('X', '-') }} {{ 'aaa' | replace('a', 'b', 2) }} {{ 'abc' | replace('', '-') }} {{ 5 | replace('5', 'x') }} {{ 'aa' | replace('a', 1) }} {{ 'abc' | replace('', '-', 2) }} {{ 'x' | replace(old='x', new='y') }}",
        "{{ 5 | string ~ 1 }} {{ none | string }} {{ [1] | string | length }} {{ '<b>' | safe }} {{ '<' | escape }} {{ '<' | e | safe }} {{ '<'|safe + '<' }} {{ '<' + '&'|safe }} {{ '<'|safe ~ '<' }}",
        "{{ lines | indent }}#{{ lines | indent(2, true) }}#{{ lines | indent(2, blank=true) }}#{{ lines | indent('> ') }}#{{ '' | indent(3, true) }}#{{ 'a\\n' | indent(1) }}#{{ 'a\\n\\n' | indent(1) }}#",
        "{{ 'abc' | length }} {{ emoji | length }} {{ l | count }} {{ d | length }} {{ missing | length }} {{ '' | length }} {{ range(4)|length }}",
        "{{ n | length }}", "{{ none | length }}", "{{ (l | map('string')) | length }}",
        "{{ missing | default('x') }} {{ none_value | default('x') }} {{ none_value | default('x', true) }} {{ '' | d('e', boolean=true) }} {{ missing | default }}| {{ n | default(1) }} {{ d.q.z if d.q else 'safe' }} {{ d.q | default(d.b) }}",
        "{{ missing.x | default('x') }}",
        "{{ '42' | int }} {{ ' -7 ' | int }} {{ '3.9' | int }} {{ 3.9 | int }} {{ -3.9 | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ 'x' | int(default=6) }} {{ '1_000' | int }} {{ 'ff' | int(0, 16) }} {{ '0x1A' | int(0, 16) }} {{ true | int }} {{ none | int }} {{ '' | int }} {{ [] | int }}",
        "{{ '1.5' | float }} {{ 2 | float }} {{ 'x' | float }} {{ 'x' | float(2.5) }} {{ '1e3' | float }} {{ none | float }} {{ true | float }}",
        "{{ -3 | abs }} {{ (-3) | abs }} {{ (-2.5) | abs }} {{ 3.456 | round(2) }} {{ 2.5 | round }} {{ 3.5 | round }} {{ -2.5 | round }} {{ 2.1 | round(0, 'ceil') }} {{ 2.9 | round(method='floor') }} {{ 7 | round }} {{ 1234 | round(-2) }} {{ 2.675 | round(2) }} {{ 1.005 | round(1) | int }}",
        "{{ missing | upper }}| {{ missing | trim }}| {{ missing | string }}| {{ n | upper }} {{ true | lower }} {{ none | title }}",
        "{{ 'a' | abs }}", "{{ 'a' | round }}", "{{ 1 | replace('a') }}", "{{ 'a' | upper(1) }}", "{{ 'a' | trim(1) }}",
    ],
    "tojson": [
        "{{ d | tojson }}",
        "{{ messages | tojson }}",
        "{{ d | tojson(indent=2) }}", "{{ {'a': [], 'b': {}, 'c': [1, {'x': none}]} | tojson(indent=4) }}", "{{ l | tojson(indent=0) }}", "{{ {'a': [1]} | tojson(indent='\\t') }}",
        "{{ s | tojson }} {{ emoji | tojson }} {{ emoji | tojson(ensure_ascii=true) }} {{ '\\x7f\\x01\\n\\t\\\\\"/<>&\\'' | tojson }} {{ '\\x7f\\u2028' | tojson(true) }}",
        "{{ 1.0 | tojson }} {{ 1e20 | tojson }} {{ true | tojson }} {{ none | tojson }} {{ 5 | tojson }} {{ (1, 2) | tojson }} {{ 'x' | tojson }} {{ [] | tojson }} {{ {} | tojson }}",
        "{{ {'b': 1, 'a': {'d': 1, 'c': 2}} | tojson(sort_keys=true) }} {{ [1, 2] | tojson(separators=(',', ':')) }} {{ {'a': 1} | tojson(separators=(',', ':')) }} {{ {'a': [1, 2]} | tojson(indent=1, separators=(' ,', ' : ')) }}",
        "{{ {1: 'a', true: 'b', none: 'c', 1.5: 'd'} | tojson }}",
        "{{ missing | tojson }}", "{{ range(3) | tojson }}", "{{ d.items() | tojson }}", "{{ {(1, 2): 3} | tojson }}", "{{ (l | map('string')) | tojson }}",
        "{{ (l | map('string') | list) | tojson }}{{ 'a' ~ ({'k': 'v'} | tojson) ~ 'b' }}",
    ],
    "sequence filters": [
        "{{ l | join }} {{ l | join(', ') }} {{ words | join('-') }} {{ people | join(', ', attribute='name') }} {{ 'abc' | join('.') }} {{ [] | join(',') }}| {{ [none, true, 1.5] | join(' ') }} {{ d | join }}",
        "{{ l | first }} {{ l | last }} {{ 'abc' | first }} {{ 'abc' | last }} {{ [] | first }}| {{ [] | last }}| {{ d | first }} {{ (l | map('string')) | first }} {{ range(5) | last }}",
        "{{ (l | map('string')) | last }}",
        "{{ l | sort }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ l | sort(reverse=true) }} {{ people | sort(attribute='age') | map(attribute='name') | list }} {{ people | sort(attribute='age,name') | map(attribute='name') | join(',') }} {{ people | sort(true, false, 'name') | map(attribute='name') | join(',') }}",
        "{{ [1, 'a'] | sort }}", "{{ [none, 1] | sort }}", "{{ 5 | sort }}",
        "{{ l | reverse | list }} {{ 'aé😀' | reverse }} {{ (1, 2) | reverse | list }}",
        "{{ words | unique | list }} {{ words | unique(true) | list }} {{ people | unique(attribute='age') | map(attribute='name') | list }} {{ [1, 1.0, true, 2] | unique | list }}",
        "{{ people | map(attribute='name') | list }} {{ people | map(attribute='tags.0') | list }} {{ people | map(attribute='zip', default='?') | list }} {{ words | map('upper') | list }} {{ l | map('string') | join('+') }} {{ words | map('replace', 'p', 'q') | list }} {{ [[1, 2], [3]] | map('length') | list }} {{ [[1, 2]] | map(attribute=1) | list }}",
        "{{ people | map(attribute='tags.0.x') | list }}",
        "{{ people | selectattr('tags') | map(attribute='name') | list }} {{ people | selectattr('age', '>', 26) | map(attribute='name') | list }} {{ people | selectattr('name', 'equalto', 'Bo') | list | length }} {{ people | rejectattr('age', 'eq', 30) | map(attribute='name') | list }} {{ people | rejectattr('tags') | list | length }} {{ people | selectattr('tags', 'defined') | list | length }} {{ messages | selectattr('role', 'in', ['user', 'system']) | list | length }} {{ messages | selectattr('role', '==', 'user') | first }}",
        "{{ l | select('odd') | list }} {{ l | reject('odd') | list }} {{ [0, 1, '', 'a'] | select | list }} {{ [0, 1, '', 'a'] | reject | list }} {{ words | select('in', ['fig']) | list }} {{ l | select('greaterthan', 1) | list }}",
        "{{ none_value | selectattr('x') | list }} {{ missing | select | list }} {{ none_value | map('upper') | list }}",
        "{% set g = l | select('odd') %}{{ g | list }}{{ g | list }}{{ 'true' if [] | select('odd') else 'false' }}",
        "{% set g = l | map('string') %}{{ g | first }}{{ g | list }}{{ g | first }}|",
        "{{ d | items | list }} {{ missing | items | list }} {% for k, v in d | items %}{{ k }}{% endfor %}", "{{ l | items | list }}",
        "{{ d | dictsort }} {{ {'b': 1, 'A': 2, 'c': 0} | dictsort }} {{ {'b': 1, 'A': 2} | dictsort(true) }} {{ {'b': 1, 'a': 2} | dictsort(by='value') }} {{ {'b': 1, 'a': 2} | dictsort(false, 'key', true) }}",
        "{{ l | min }} {{ l | max }} {{ words | min }} {{ words | max }} {{ people | max(attribute='age') }} {{ [] | min }}| {{ people | min(attribute='name') }}",
        "{{ l | sum }} {{ people | sum(attribute='age') }} {{ [] | sum }} {{ [1.5, 2] | sum(start=10) }} {{ [[1], [2]] | sum(start=[]) }}",
        "{{ 'abc' | list }} {{ d | list }} {{ missing | list }} {{ (1, 2) | list }} {{ range(3) | list }} {{ d.items() | list | length }}", "{{ 5 | list }}", "{{ none | list }}",
        "{{ l | map('nope') | list }}", "{{ l | select('nope') | list }}", "{{ l | map | list }}", "{{ l | selectattr | list }}",
        "{{ d.keys() }} {{ {'a': 1}.values() }} {{ {'a': 1}.items() }}",
    ],
    "methods": [
        "[{{ '  a  '.strip() }}] [{{ '  a  '.lstrip() }}] [{{ '  a  '.rstrip() }}] [{{ 'xxaxy'.strip('xy') }}] [{{ 'abc'.lstrip('ab') }}] [{{ '\u00a0a\u3000'.strip() }}] [{{ 'a'.strip(none) }}]",
        "{{ 'a,b,,c'.split(',') }} {{ ' a  b c '.split() }} {{ 'a b c'.split(' ', 1) }} {{ 'a  b c '.split(none, 1) }} {{ 'abc'.split('x') }} {{ ''.split(',') }} {{ ''.split() }} {{ 'a--b--c'.split('--') }} {{ 'a,b'.split(sep=',') }} {{ 'a b c'.split(maxsplit=1) }}",
        "{{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b c '.rsplit(none, 1) }} {{ 'a b  c'.rsplit() }} {{ 'aaa'.rsplit('aa') }} {{ 'aaa'.split('aa') }}",
        "{{ lines.splitlines() }} {{ lines.splitlines(true) }} {{ ''.splitlines() }} {{ 'a\\n'.splitlines() }}",
        "{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('') }} {{ 'a'.startswith('abc') }}",
        "{{ s.upper() }} {{ s.lower() }} {{ \"they're bill's friends\".title() }} {{ 'hELLO'.capitalize() }} {{ 'aXa'.replace('a', 'b') }} {{ 'aaa'.replace('a', 'b', 1) }}",
        "{{ 'hello'.find('l') }} {{ 'hello'.rfind('l') }} {{ 'hello'.find('z') }} {{ emoji.find('中') }} {{ 'hello'.count('l') }} {{ 'hello'.index('e') }} {{ 'aaa'.count('aa') }} {{ 'ab'.count('') }}",
        "{{ ', '.join(['a', 'b']) }} {{ ''.join('abc') }} {{ '-'.join(words) }} {{ '+'.join(l | map('string')) }}", "{{ ','.join([1]) }}", "{{ 'a'.index('b') }}", "{{ 'a'.split('') }}",
        "{{ '12'.isdigit() }} {{ 'a1'.isdigit() }} {{ ''.isdigit() }} {{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' \\t'.isspace() }} {{ 'AB'.isupper() }} {{ 'ab'.islower() }} {{ '²'.isdigit() }} {{ '²'.isdecimal() }} {{ 'é'.isalpha() }}",
        "{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }} {{ 'x'.removesuffix('y') }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('=') }} {{ 'abc'.rpartition('=') }}",
        "{{ '{} and {}'.format(1, 'x') }} {{ '{1}{0}{1}'.format('a', 'b') }} {{ '{name}!'.format(name='Bo') }} {{ '{{}} {}'.format(none) }}", "{{ '{}'.format() }}", "{{ '{'.format(1) }}",
        "{{ l.index(1) }} {{ l.count(3) }} {{ (1, 2).index(2) }} {{ d.copy() == d }}", "{{ l.append(4) }}", "{{ d.update({'x': 1}) }}", "{{ l.index(9) }}", "{{ d.pop('a') }}",
        "{{ 'a'.upper().lower() ~ 'B'.lower() }} {{ (s | upper).lower()[:3] }} {{ messages[1].content.strip().split('\\t')[-1] }}",
        "{{ 'a'.strip(1) }}", "{{ 'a'.replace('a') }}", "{{ 'a'.startswith(1) }}", "{{ 'a'.startswith() }}",
        "{{ '</think>' in 'x</think>y' and 'x</think>y'.split('</think>')[-1].lstrip('\\n') }}",
    ],
    "functions": [
        "{{ dict(a=1, b='x') }} {{ dict({'z': 1}, a=2) }} {{ dict() }} {{ namespace(a=1) }}",
        "{{ raise_exception('no') }}", "{% if not t %}{{ raise_exception('no') }}{% endif %}ok", "{{ raise_exception('bad ' ~ n) }}",
        "{{ strftime_now('') }}|{{ strftime_now('%Y') | length }}", "{{ range() }}", "{{ range('a') }}", "{{ range(1000000) | length }}",
        "{{ range(start=1) if false else 1 }}", "{{ lower('A') }}", "{{ undefined_function() }}",
    ],
    "precedence": [
        "{{ 1 + 2 | string }}", "{{ (1 + 2) | string ~ 'x' }} {{ 'a' ~ 'b' | upper }} {{ not false | string }} {{ 'x' in 'xyz' | upper }} {{ 2 * 3 | string }}",
        "{{ 1 if true else 2 | string ~ 'x' }} {{ -1 | abs }} {{ 2 ** 2 | int }} {{ [1, 2] | first + 1 }} {{ 'a,b'.split(',') | last | upper }}",
        "{{ 1 == 1 and 2 == 2 or false }} {{ not 1 == 2 }} {{ 1 + 1 == 2 }} {{ 1 ~ 1 == '11' }} {{ 3 > 2 and 'a' not in 'bcd' }}",
        "{{ n is defined and n is number or false }} {{ 'a' if false else 'b' if false else 'c' }} {{ (1, 2)[0] + [3][0] }} {{ {'a': [1]}['a'][0] }} {{ {'a': 1}.a }}",
        "{{ l | map('string') | map('upper') | join(',') | length }} {{ l | first is odd }} {{ l | length > 2 }} {{ l|length is odd }}",
    ],
    "errors": [
        "{{ }}", "{% %}", "{{ 1 +", "{{ 1", "{% if %}", "{% if true %}", "{% endif %}", "{% for i in %}{% endfor %}", "{% for 1 in l %}{% endfor %}",
        "{{ 'abc }}", "{# open", "{% raw %}x", "{{ 1 2 }}", "{{ a. }}", "{{ a[ }}", "{{ (1 }}", "{{ 1) }}", "{{ [1) }}", "{{ f(a=1, 2) }}", "{{ {1} }}", "{{ a | }}", "{{ a is }}",
        "{% set 1 = 2 %}", "{% set a %}", "{% break %}", "{% for i in l %}{% endif %}", "{% unknown %}", "{% macro %}{% endmacro %}", "{% macro m(a=1, b) %}{% endmacro %}",
        "{{ 1 | nope }}", "{{ 1 is nope }}", "{{ @ }}", "{{ 1 if }}", "{{ 1 is odd is even }}", "{{ * }}", "{{ a b }}", "{% if t %}{{ 1 | nope }}{% endif %}", "{{ 1 | nope if t else 2 }}",
    ],
    "lazily unknown": [
        "{% if not t %}{{ 1 | nope }}{% else %}ok{% endif %}", "{{ 1 | nope if false else 'ok' }}", "{{ 'ok' if true else 1 | nope }}", "{% if t %}ok{% elif n %}{{ 1 is nope }}{% endif %}",
    ],
}


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def make_environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    import datetime

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return env


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    env = make_environment()
    cases = []
    for group, sources in GROUPS.items():
        for source in sources:
            case = {"group": group, "source": source}
            try:
                case["text"] = env.from_string(source).render(**CONTEXT)
            except Exception as e:
                case["error"] = f"{type(e).__name__}: {e}"
            cases.append(case)
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump({"context": CONTEXT, "cases": cases}, out, ensure_ascii=False, indent=1)
        out.write("\n")
    print(len(cases), "cases,", sum("error" in c for c in cases), "of them errors")


if __name__ == "__main__":
    main()
