"""What a memory that wants to command its reader looks like: one table, data only. `screen` applies it.

A rule has a reason (several may share one), a score in per mille, literals of which one must occur, and a pattern, both over
the folded lower-case text. Scores: 800 and more alone hold a memory for review; 500 and more are noted, and two of different
reasons add up. They were set by hand on the sets that tests/unit/test_screen.py names; precision comes first. Invariant: every
gap is bounded, so time is linear.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class ScreenRule(NamedTuple):
    reason: str
    score: int
    literals: tuple[str, ...]
    pattern: re.Pattern[str]


def _rule(reason: str, score: int, literals: str | tuple[str, ...], pattern: str) -> ScreenRule:
    found = tuple(literals.split("|")) if isinstance(literals, str) else literals
    return ScreenRule(reason, score, found, re.compile(pattern, re.MULTILINE))


_ORDERS: Final = (
    r"(?:instructions?|prompts?|directives?|guidelines?|rules|polic(?:y|ies)|orders|commands|programming"
    r"|restrictions|constraints)"
)
_YOURS: Final = (
    r"(?:all|any|every|previous|prior|above|earlier|preceding|your|initial|original|system|existing|developer"
    r"|safety|operator'?s?)"
)
_FREE: Final = (
    r"(?:no|without(?: any)?|free (?:of|from)(?: all| any)?|exempt from(?: the| all)?(?: usual)?) (?:\w+ )?"
    r"(?:restrictions?|rules|filters?|limits|limitations|polic(?:y|ies)|guidelines|censorship)"
)
_ACTS: Final = (
    r"(?:send|forward|transfer|wire|pay|upload|post|email|e-mail|leak|share|exfiltrate|execute|run|delete"
    r"|disable|grant|approve|call|append|insert|include)"
)
_GUARDED: Final = (
    r"(?:credentials?|passwords?|secrets?|(?:api |access |private |secret )keys?|tokens|environment variables"
    r"|system prompt|session data"
    r"|(?:customer|user|client|order) (?:list|emails?|data|records)|(?:all|full|entire) (?:the )?(?:\w+ )?"
    r"(?:data|files|records|conversations?|history|context)"
    r"|conversation (?:data|history|context)|personal (?:data|information)|private (?:data|files|notes))"
)
_AWAY: Final = r"(?:https?://|www\.|\w@[\w-]{1,60}\.\w|\bto [\w-]{1,40}\.\w|externally|external address)"
_AUDIENCE: Final = (
    r"(?:ai|llm|language model|assistant|bot|chatbot|ai (?:assistant|agent|system|model)|(?:ai )?(?:coding )?agent)s?"
)

INSTRUCTION: Final = (
    _rule(
        "instruction", 900, "ignor|disregard|forget|bypass|overrid|not follow|stop following",
        rf"\b(?:ignor(?:e|ing)|disregard(?:ing)?|forget|bypass|override|(?:do|must) not follow|stop following)\b(?:"
        rf"[^\n.!?]{{0,40}}\b{_YOURS}\b[^\n.!?]{{0,40}}"
        rf"\b{_ORDERS}\b| (?:everything|anything|all)(?: of)?(?: the)? (?:above|before|previous|prior|you (?:were"
        rf"|have been) told)\b"
        r"| the (?:above|user|operator)(?:[.,;:!]|'s (?:task|request|instructions?)| (?:and|task|request)\b)"
        r"| the \w+ request\b[.!]| your (?:training|guardrails)\b)"),
    _rule(
        "instruction", 850, "you|respond|answer|act |pretend",
        rf"\b(?:you (?:are|will be|have|now|must)|respond|answer|act|pretend|behave|comply|output|mode)\b"
        rf"[^\n]{{0,80}}\b{_FREE}\b"),
    _rule(
        "instruction", 850, "dan|developer mode|unrestricted|uncensored|jailbr|do anything now|amoral",
        r"\b(?:you are|you're|act|pretend|enable|enter|as|now|an?)\b[^\n]{0,30}\b(?:dan\b|developer mode|"
        r"(?:unrestricted|uncensored|jailbroken|amoral)[ ,]"
        r"(?:\w+ )?(?:ai|assistant|mode|model|response|chatbot|and)|do anything now)"),
    _rule(
        "instruction", 850, "instruction|directive|your new|your real|your actual",
        r"\byour (?:new|real|actual|only|true) (?:instructions?|directives?|tasks?|roles?|goals?|mission)\b"
        r"(?: \w+){0,2} (?:is|are|supersedes?)\b"
        r"|(?:^|[.:\]] ?)new (?:instructions?|directives?|task) ?:"),
    _rule(
        "instruction", 850, "prompt|instructions|system message",
        r"\b(?:reveal|print|output|show(?: me)?|repeat|leak|dump|disclose|display|reproduce|printing)\b[^\n.]{0,30}"
        r"\b(?:(?:your|the|its)(?: \w+)? (?:system|hidden|initial|developer) (?:prompt|instructions?|message)|your "
        r"(?:\w+ )?(?:prompt|instructions))\b"),
    _rule(
        "instruction", 800, "decode|decrypt|rot13|base64",
        r"\b(?:decode|decrypt|translate)\b[^\n]{0,80}\b(?:follow|obey|do (?:exactly )?(?:what|as)|execute)\b"),
    _rule(
        "instruction", 800, "disabled|overrid|safety|compromised",
        r"\b(?:skip|disable|bypass|override)\b[^\n.]{0,30}\b(?:safety|security) (?:\w+ )?(?:checks|filters|rules"
        r"|protocols|confirmations)\b"
        r"|\bsafety (?:protocols|filters|checks) (?:are )?disabled\b|\bsafety (?:guidelines|rules|policy) (?:were"
        r"|are|do|does) not\b"),
    _rule(
        "instruction", 850, "igno|olvid|oubli|vergi|dimentica|revel|verrat|zeige|rivel|reveal|sin restric|sans restric",
        r"\b(?:ignor(?:a|ez|iere|e|ieren)|olvida|oubliez|vergiss|vergessen|dimentica)\b[^\n.]{0,30}(?:instruc"
        r"|istruzion|anweisung|richtlinie|regeln|regles)"
        r"|\b(?:revela|muestra|revelez|revele|verrate|zeige|rivela|mostra)\b[^\n.]{0,30}(?:prompt|instruc|istruzion"
        r"|systemanweisung)"),
    _rule("instruction", 600, "call ", r"\bcall (?:the )?[a-z]{2,20}_[a-z_]{2,30}\b"),
    _rule(
        "instruction", 600, "reply|respond|answer|output",
        r"\b(?:reply|respond|answer) (?:only )?with\b[^\n]{1,60}\b(?:and nothing else|only)\b|\b(?:reply|respond) only with\b"
        r"|\b(?:append|insert|include|add)\b[^\n.]{0,60}\b(?:at|to|in) (?:the )?(?:end|start|beginning)? ?(?:of )?"
        r"(?:your|every|each|all) (?:\w+ )?(?:reply|replies|response|answer|summary|review)\b"),
    _rule(
        "address", 600, "ai|llm|bot|assistant|agent|model",
        rf"\b(?:note|notice|attention|message|important|instructions?) (?:to|for) (?:any |all |the |every )?{_AUDIENCE}\b"
        rf"|\bif you are an? {_AUDIENCE}\b|\b{_AUDIENCE} (?:reading|processing|reviewing|summarizing|integrating) this\b"),
    _rule(
        "concealment", 600, "user|notic|trace|silently|anyone",
        r"\b(?:do not|don't|never|without) (?:tell|inform|mention|reveal|notify|alert|telling|informing|notifying"
        r"|alerting|mentioning)\b[^\n.]{0,30}\b(?:user|customer|operator|owner)\b"),
    _rule(
        "instruction", 850, "忽略|无视|忘记|忘掉|不要理会|不要遵|抛开|跳过",
        r"(?:忽略|无视|忘记|忘掉|不要理会|不要遵[循守]|抛开|跳过)[^。！？\n]{0,12}"
        r"(?:之前|以前|以上|上述|前面|先前|上面|所有|全部|原有|系统|原来|此前|你的)"
        r"[^。！？\n]{0,8}(?:指令|指示|提示词?|规则|命令|设定|限制|约束)"),
    _rule(
        "instruction", 850, "系统提示|提示词|系统指令|系统消息",
        r"(?:输出|泄露|透露|告诉我|显示|打印|重复)[^。！？\n]{0,12}(?:系统提示|提示词|系统指令|系统消息)"),
    _rule(
        "instruction", 850, "限制|约束",
        r"(?:你现在|从现在起|从现在开始)[^。！？\n]{0,30}(?:没有|不受|无|解除)[^。！？\n]{0,6}(?:限制|约束)"),
    _rule("concealment", 600, "用户|客户", r"(?:不要|别|勿|不得)(?:告诉|通知|告知|让|向)[^。！？\n]{0,4}(?:用户|客户)"),
)  # fmt: skip

IMITATION: Final = (
    _rule(
        "imitation", 900, ("<|", "inst]", "sys>>", "start_of_turn>", "system>", "assistant>", "untrusted>"),
        r"<\|(?:im_start|im_end|system|user|assistant|endoftext|eot_id|start_header_id|begin_of_text)\|>|\[/?inst\]"
        r"|<</?sys>>|<start_of_turn>"
        r"|</?(?:system|assistant|untrusted)>"),
    _rule(
        "imitation", 850, "system|developer",
        r"(?:^|[.!?>\]*-] ?)[\W_]{0,10}(?:system|developer)(?: (?:message|note|prompt|update|override|notice"
        r"|instruction))? ?[\]:][\W_]{0,5}"
        r"[^\n]{0,100}\b(?:you (?:are|may|must|will|can) |must|ignore|disregard|call|grant|reveal|new (?:task"
        r"|instruction|rule)|cancelled|delete|admin|password|append|before (?:you|responding))"),
    _rule("imitation", 600, "system|assistant",
        r"^[\W_]{0,6}(?:system|developer)(?: (?:message|note|prompt|override))? ?[\]:]"),
    # a lone assistant's turn; with the user's turns beside it, it is a transcript
    _rule("imitation", 500, "assistant:|assistant :", r"\A(?![\s\S]*^(?:user|human|customer) ?:)[\s\S]*^[\W_]{0,4}assistant ?:"),
    _rule("imitation", 850, "assistant:|assistant :",
        r"^[\W_]{0,4}assistant ?: [^\n]{0,40}\b(?:here (?:is|are) the|the) (?:\w+ )?(?:password|credentials|secrets?|keys?)\b"),
    _rule("imitation", 850, "important|system|breach|override",
        r"\b(?:important )?system (?:update|override|alert) ?: [^\n]{0,60}\byour?\b|\bbreach alert ?:|^override ?:"),
    _rule("imitation", 850, "cordon|gatekeeper",
        r"\bcordon (?:notice|gatekeeper|system|alert)\b|(?:^|\[)gatekeeper(?: notice)? ?[:\]]"),
    _rule("imitation", 850, "[end |[memory ", r"\[end [0-9a-z]{6,26}\]|\[memory [0-9a-z]{6,26} (?:id|origin|trust)="),
    _rule("imitation", 700, "end of",
        r"^[-=#*<\[ ]{2,8}end of (?:document|user input|context|input|data|file|prompt|untrusted|memory|memories"
        r"|conversation)\b"),
    _rule("imitation", 850, "系统|管理员|开发者|网关",
        r"^[\W_]{0,6}(?:系统|管理员|开发者|网关)(?:消息|通知|提示|指令|公告)?[\]】]?[:：][^\n]{0,60}(?:必须|请|你|忽略|删除|执行|授权)"),
)  # fmt: skip

TRIGGER: Final = (
    _rule(
        "trigger", 850, "when|every time|each time|next |as soon as|if any|if a ",
        r"\b(?:whenever|every time|each time|(?:on )?the next (?:time|user message)|next time|as soon as|when"
        r"(?:ever)? (?:you|anyone|any user|a user|the user|users|someone|asked)"
        rf"|if (?:anyone|any user|a user|someone))\b(?=[^\n]{{0,120}}?\b{_ACTS}\b)"
        rf"(?=[^\n]{{0,160}}?(?:{_AWAY}|\b{_GUARDED}|\battacker\b|\bwithout (?:asking|confirm|telling)|\b(?:funds"
        rf"|money|wallet)\b))"),
    _rule(
        "trigger", 500, "when|every time|each time|next ",
        rf"\b(?:whenever|every time|each time|next time)\b"
        rf"(?=[^\n]{{0,100}}?\b(?:always|must|immediately|automatically|silently)\b)(?=[^\n]{{0,140}}?\b{_ACTS}\b)"),
    _rule(
        "trigger", 500, "before |future|rest of this|from now on|this point",
        r"\bbefore (?:you (?:reply|answer|respond|summarize)|respond(?:ing)?|replying|answering|continuing with the task)\b"
        r"|\b(?:for the rest of this (?:conversation|session|chat|task)|(?:for|in|to) (?:all|every|any) future "
        r"(?:tasks?|interactions?|responses?|repl(?:y|ies)|summar(?:y|ies)))\b"),
    _rule(
        "trigger", 850, "每当|每次|只要|以后|今后|下次|当用户|如果用户",
        r"(?:每当|每次|只要|以后|今后|下次|当用户|如果用户)[^。！？\n]{0,40}(?:必须|务必|一律|立即|自动|总是|始终|都要?)[^。！？\n]{0,30}(?:发送|发给|转账|转发|执行"
        r"|运行|调用|删除|上传|授权)"),
)  # fmt: skip

EXFIL: Final = (
    _rule(
        "exfil", 850, "send|post|upload|forward|transmit|mail|leak|exfiltrat|copy|submit",
        rf"\b(?:send|post|upload|forward|transmit|exfiltrate|e-?mail|leak|copy|submit)\b"
        rf"(?:(?=[^\n]{{0,120}}?{_AWAY})(?=[^\n]{{0,120}}?\b{_GUARDED})|(?=[^\n]{{0,80}}?\battacker))"),
    _rule(
        "exfil", 500, "send|post|upload|forward|route|routing",
        r"\b(?:http_post|send_email|(?:send|post|upload|forward|rout(?:e|ing)) [^\n.]{0,60}\b(?:data|results?"
        r"|context|contents|quer(?:y|ies)|summary|everything))\b[^\n]{0,60}(?:https?://|@)"),
    _rule("exfil", 850, "发送|上传|转发|提交|发给|发到", r"(?:发送|上传|转发|提交|发给|发到)[^。！？\n]{0,40}(?:https?://|@[a-z0-9-]{1,60}\.[a-z])"),
)  # fmt: skip

# only for origins below user_stated: an owner may prefer what he likes
PREFERENCE: Final = (
    _rule(
        "durable_preference", 800, "always|remember|from now on|future|permanent|never",
        r"(?:^|[.;:!>\"'-] ?|\b(?:to|should|must|and|please|will) )(?:always|permanently|from now on,?) (?:prefer"
        r"|recommend|suggest|cite|trust|favou?r|promote|rank|prioriti[sz]e|mention)\b(?! to)"
        r"|\b(?:remember|from now on|in (?:all )?future|always|never)\b[^\n]{0,100}\b(?:(?:most )?(?:trusted"
        r"|authoritative|reliable|preferred|go-to|definitive) (?:source|vendor|supplier|provider|brand|reference)"
        r"|(?:top|first|best|only) (?:choice|pick|recommendation|source)|over (?:its|all|any) (?:other |competitors?))"),
    _rule("durable_preference", 800, "始终|总是|永远|记住|一律",
        r"(?:始终|总是|永远|一律|请?记住)[^。！？\n]{0,20}(?:推荐|首选|优先(?:推荐|选择|使用)|可信(?:来源|的来源)|权威来源)"),
)  # fmt: skip
