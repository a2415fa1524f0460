"""lm-eval's `local-completions` on tasks made of the server's own words: the truth is known.

A continuation that the server itself chose must be called greedy and win over others; its
perplexity must be what single steps say.
"""

import json
import logging
import math
import os
import tempfile
from pathlib import Path

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer
from wire import API_KEY, BASE_URL, MODEL, TOKENIZER, post, text

os.environ["OPENAI_API_KEY"] = API_KEY
logging.disable(logging.CRITICAL)

CONTEXTS = [
    "Once upon a",
    "The table was",
    "Alice looked at",
    "said the March",
    "I do not",
    "It was",
]
COMMON = """
dataset_path: json
dataset_kwargs: {data_files: {test: documents.jsonl}}
test_split: test
doc_to_text: "{{context}}"
target_delimiter: ""
metadata: {version: 1}
"""
TASKS = {
    "greedy": """
output_type: loglikelihood
doc_to_target: "{{continuation}}"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: perplexity, aggregation: perplexity, higher_is_better: false}
""",
    "choice": """
output_type: multiple_choice
doc_to_choice: choices
doc_to_target: 0
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
""",
    "generate": """
output_type: generate_until
doc_to_target: "{{generated}}"
generation_kwargs: {until: ["\\n"], do_sample: false, temperature: 0, max_gen_toks: 12}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
""",
}

tokenizer = Tokenizer.from_file(f"{TOKENIZER}/tokenizer.json")


def encode(string):
    """Return a text's ids, without special tokens."""
    return tokenizer.encode(string, add_special_tokens=False).ids


def step(ids):
    """Return the next greedy token's text and logprob."""
    body = {"model": MODEL, "prompt": [ids], "temperature": 0, "max_tokens": 1, "logprobs": 1}
    scores = post("/v1/completions", body)["choices"][0]["logprobs"]
    return scores["tokens"][0], scores["token_logprobs"][0]


def document(context):
    """Return a context with two greedy tokens, if they are encoded as they were chosen."""
    ids, chosen, logprob = encode(context), "", 0.0
    for _ in range(2):
        token, value = step(ids)
        ids, chosen, logprob = ids + encode(token), chosen + token, logprob + value
    if encode(context + chosen) != ids or chosen.isspace():
        return None
    generated = text([encode(context)], stop=["\n"])
    return {
        "context": context,
        "continuation": chosen,
        "choices": [chosen, " zq,,"],
        "generated": generated,
        "logprob": logprob,
    }


work = Path(tempfile.mkdtemp())
os.chdir(work)
documents = [made for made in map(document, CONTEXTS) if made]
assert len(documents) >= 3, documents
Path("documents.jsonl").write_text("".join(json.dumps(made) + "\n" for made in documents))
for name, task in TASKS.items():
    Path(f"{name}.yaml").write_text(f"task: {name}\n{COMMON}{task}")
manager = TaskManager(include_path=".", include_defaults=False)


def evaluate(batch_size=1, **options):
    """Return the results of all tasks."""
    arguments = {"model": MODEL, "base_url": f"{BASE_URL}/completions", "max_retries": 1}
    arguments |= {"tokenizer_backend": "huggingface", "tokenizer": TOKENIZER, **options}
    return simple_evaluate(
        model="local-completions",
        model_args=arguments,
        tasks=list(TASKS),
        task_manager=manager,
        batch_size=batch_size,
        bootstrap_iters=0,
        log_samples=False,
    )["results"]


want = math.exp(-sum(made["logprob"] for made in documents) / len(documents))
for options in ({}, {"batch_size": 4}, {"batch_size": 2, "num_concurrent": 4}):
    results = evaluate(**options)
    assert results["greedy"]["acc,none"] == 1.0, results
    assert results["choice"]["acc,none"] == 1.0, results
    assert results["generate"]["exact_match,none"] == 1.0, results
    got = results["greedy"]["perplexity,none"]
    assert abs(got / want - 1) < 1e-3, (got, want)
remote = {"tokenizer_backend": "remote", "auth_token": API_KEY}
results = evaluate(**remote)
assert results["choice"]["acc,none"] == 1.0, results
