"""Conversations to token ids, and which of them are targets: those of the assistant, no others.

With a tokenizer that has a chat template (``chat_template.jinja`` or ``tokenizer_config.json``
beside its ``tokenizer.json``) a conversation is written as that says, through transformers.
Without one it is written plainly, in tokens that any tokenizer has: for each message

    <|role|>      as text, and a line end
    its content
    the end of text, one token

which is Zephyr's format (https://huggingface.co/HuggingFaceH4/zephyr-7b-beta) without the line end
after the last.  Of an assistant's message its content and what ends its turn are targets; what says
that it is the assistant's turn is not, as a conversation goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memfit.data.readers import Conversation
from memfit.data.tokenizer import end_of_text_id, open_tokenizer
from memfit.errors import BadInput, DamagedFile

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_ENCODED_AT_ONCE = 1 << 12
"""Conversations handed to the tokenizer's threads in one call."""

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
"""What a template may name, by its name in tokenizer_config.json."""


class Encoded(NamedTuple):
    """A conversation as the model sees it."""

    ids: list[int]
    is_target: list[bool]


_STAND_IN = "what-is-said"
"""In place of a turn's content, to see what a template writes behind it."""


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template in Jinja, and the tokens that it may name."""

    source: str
    special: dict[str, str]


def template_beside(tokenizer: Path) -> Template | None:
    """The template of the tokenizer in this ``tokenizer.json``; None where it has none.

    Raises:
        DamagedFile: its ``tokenizer_config.json`` is not JSON.
    """
    path = tokenizer.parent / "tokenizer_config.json"
    config: Any = {}
    if path.is_file():
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DamagedFile(f"{path} is not JSON: {error}") from error
    found = config.get("chat_template") if isinstance(config, dict) else None
    if isinstance(found, list):  # several, each with a name
        named = {entry.get("name"): entry.get("template") for entry in found}
        found = named.get("default")
    beside = tokenizer.parent / "chat_template.jinja"
    if beside.is_file():
        found = beside.read_text(encoding="utf-8")
    if not isinstance(found, str):
        return None
    tokens = {name: config.get(name) for name in _SPECIAL}
    contents = {
        name: token.get("content") if isinstance(token, dict) else token
        for name, token in tokens.items()
    }
    return Template(found, {name: text for name, text in contents.items() if text})


def encoded(
    conversations: Iterable[Conversation], tokenizer: Path, template: Template | None
) -> Iterator[Encoded]:
    """Each conversation in turn.

    Raises:
        BadInput: the template does not take a conversation, or does not show which of its tokens
            are the assistant's.
    """
    if template is None:
        return _plainly(conversations, open_tokenizer(tokenizer))
    return _by_template(conversations, open_tokenizer(tokenizer), template)


# ------------------------------------------------------------------ the plain format


def header(role: str) -> str:
    """What begins a message of this role."""
    return f"<|{role}|>\n"


def _plainly(conversations: Iterable[Conversation], tokenizer: Tokenizer) -> Iterator[Encoded]:
    end = end_of_text_id(tokenizer)
    for group in _grouped(conversations):
        # Each part by itself, in which special tokens are just text: no message can end its turn,
        # or begin another's, by what it says.
        parts = [
            part
            for conversation in group
            for message in conversation.messages
            for part in (header(message["role"]), message["content"])
        ]
        encodings = iter(tokenizer.encode_batch_fast(parts, add_special_tokens=False))
        for conversation in group:
            found = Encoded([], [])
            for message in conversation.messages:
                before, content = next(encodings).ids, [*next(encodings).ids, end]
                found.ids.extend(before + content)
                found.is_target.extend([False] * len(before))
                found.is_target.extend([message["role"] == "assistant"] * len(content))
            yield found


def _grouped(conversations: Iterable[Conversation]) -> Iterator[list[Conversation]]:
    group: list[Conversation] = []
    for conversation in conversations:
        group.append(conversation)
        if len(group) == _ENCODED_AT_ONCE:
            yield group
            group = []
    if group:
        yield group


# ------------------------------------------------------------------ the tokenizer's template


def _by_template(
    conversations: Iterable[Conversation], tokenizer: Tokenizer, template: Template
) -> Iterator[Encoded]:
    from transformers import PreTrainedTokenizerFast

    tokenizer.encode_special_tokens = False  # the template writes them as text
    known = {
        name: text
        for name, text in template.special.items()
        if tokenizer.token_to_id(text) is not None
    }
    renderer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, chat_template=template.source, **known
    )
    for conversation in conversations:
        text, spans = _rendered(renderer, conversation, "{% generation" in template.source)
        encoding = tokenizer.encode(text, add_special_tokens=False)
        # A token belongs to the assistant when it ends in its words.
        is_target = [
            any(start < end <= stop for start, stop in spans) for _, end in encoding.offsets
        ]
        yield Encoded(encoding.ids, is_target)


def _rendered(
    renderer: Any, conversation: Conversation, marks_turns: bool
) -> tuple[str, list[tuple[int, int]]]:
    """A conversation as text, and where the assistant's turns are in it, in characters."""
    from jinja2 import TemplateError
    from transformers.utils import chat_template_utils

    messages = conversation.messages

    def render(part: list[dict[str, Any]], *, answers: bool = False) -> str:
        text: str = renderer.apply_chat_template(
            part, tokenize=False, add_generation_prompt=answers
        )
        return text

    try:
        if marks_turns:
            jinja: Any = chat_template_utils.render_jinja_template
            texts, marked = jinja(
                conversations=[messages],
                chat_template=renderer.chat_template,
                return_assistant_tokens_mask=True,
                **renderer.special_tokens_map,
            )
            return texts[0], [(start, stop) for start, stop in marked[0]]
        whole = render(messages)
        spans = [
            _turn(
                whole,
                render(messages[:number], answers=True) if number else "",
                render(messages[: number + 1]),
                message["content"].strip(),
                render([*messages[:number], {**message, "content": _STAND_IN}]),
                conversation.where,
            )
            for number, message in enumerate(messages)
            if message["role"] == "assistant"
        ]
        return whole, spans
    except (TemplateError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            f"the tokenizer's chat template does not take {conversation.where}: {error}"
        ) from error


def _turn(
    whole: str, before: str, until: str, content: str, with_stand_in: str, where: str
) -> tuple[int, int]:
    """Where a turn is in the whole text: from what asks for it to what ends it.

    A template may write a turn otherwise when others follow, as Qwen 3's leaves out what was
    thought.  What ends a turn is then looked for behind its content.
    """
    until = until.rstrip()
    if whole.startswith(before):
        if whole.startswith(until) and len(until) >= len(before):
            return len(before), len(until)
        _, found, end = with_stand_in.rstrip().rpartition(_STAND_IN)
        place = whole.find(content + end, len(before))
        if found and end and place >= 0:
            return len(before), place + len(content) + len(end)
    raise BadInput(
        f"the tokenizer's chat template does not show where the assistant's turns are in {where}: "
        "mark them in the template with {% generation %} and {% endgeneration %}"
    )
